#include "reports/json.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace kveval {
namespace {

using Json = nlohmann::ordered_json;  // members in the order written: the same bytes every time

template <class T>
Json nullable(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json tally_json(const Tally& tally) {
  const Interval interval = tally.interval();
  return {{"correct", tally.correct},
          {"accuracy", tally.scored == 0 ? Json(nullptr) : Json(tally.accuracy())},
          {"wilson95", {interval.low, interval.high}},
          {"strict", tally.strict},
          {"first", tally.first},
          {"contains", tally.contains},
          {"scorers_disagree", tally.scorers_disagree},
          {"gold_nll", nullable(tally.gold_nll)}};
}

Json cell_json(const CellComparison& cell) {
  Json json;
  if (cell.length > 0) json = {{"task", cell.task}, {"length", cell.length}};
  json.update({{"pairs", cell.pairs()},
               {"haystacks", cell.haystacks},
               {"lost_pairs", cell.lost_pairs},
               {"losses", cell.losses},
               {"gains", cell.gains},
               {"p", cell.p},
               {"p_holm", cell.p_holm},
               {"floor", cell.floor()},
               {"base", tally_json(cell.base)},
               {"candidate", tally_json(cell.candidate)},
               {"kl", nullable(cell.kl)},
               {"top1_agreement", nullable(cell.top1_agreement)}});
  return json;
}

Json arm_json(const RunRecord& run, const ArmRecord& arm) {
  return {{"run", run.id},
          {"arm", arm.name},
          {"profile_hash", arm.profile_hash},
          {"cache_bytes_per_token", arm.cache_bytes_per_token}};
}

Json flip_json(const Flip& flip) {
  return {{"flip", flip.loss ? "loss" : "gain"},
          {"number", flip.number},
          {"item_key", flip.item_key},
          {"task", flip.task},
          {"length", flip.length},
          {"haystack", flip.haystack},
          {"index", flip.index},
          {"depth", nullable(flip.depth)},
          {"expected", flip.expected},
          {"base", flip.base_output},
          {"candidate", flip.candidate_output},
          {"first_divergence", nullable(flip.first_divergence)}};
}

}  // namespace

std::string to_json(std::span<const Comparison> comparisons, double alpha) {
  Json list = Json::array();
  for (const Comparison& comparison : comparisons) {
    Json cells = Json::array();
    for (const CellComparison& cell : comparison.cells) cells.push_back(cell_json(cell));
    Json flips = Json::array();
    for (const Flip& flip : comparison.flips) flips.push_back(flip_json(flip));
    list.push_back({{"base", arm_json(comparison.base_run, comparison.base)},
                    {"candidate", arm_json(comparison.candidate_run, comparison.candidate)},
                    {"only_base", comparison.only_base},
                    {"only_candidate", comparison.only_candidate},
                    {"pooled", cell_json(comparison.pooled)},
                    {"cells", std::move(cells)},
                    {"flips", std::move(flips)}});
  }
  const Json json{{"schema", "kveval.compare/1"}, {"alpha", alpha}, {"comparisons", std::move(list)}};
  // A model may print bytes that are not UTF-8; JSON cannot hold them.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace kveval
