#include "reports/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "engine/error.h"
#include "reports/statistics/clustered.h"

namespace kveval {
namespace {

struct Pair {
  const SampleView* base;
  const SampleView* candidate;
};

bool has_score(const SampleView& view) {
  return view.sample.state == SampleState::ok && view.sample.correct.has_value();
}

class Mean {
 public:
  void add(const std::optional<double>& value) {
    if (!value) return;
    sum_ += *value;
    ++count_;
  }
  std::optional<double> value() const {
    if (count_ == 0) return std::nullopt;
    return sum_ / static_cast<double>(count_);
  }

 private:
  double sum_ = 0;
  size_t count_ = 0;
};

std::string arm_label(const ArmData& data) { return fmt::format("{} of run {}", data.arm.name, data.run.id); }

void refuse_different_settings(const ArmData& base, const ArmData& candidate) {
  const RunRecord& a = base.run;
  const RunRecord& b = candidate.run;
  std::string differences;
  const auto check = [&](const char* what, const std::string& left, const std::string& right) {
    if (left == right) return;
    differences += fmt::format("{}{} ({} and {})", differences.empty() ? "" : ", ", what,
                               left.empty() ? "none" : left, right.empty() ? "none" : right);
  };
  // The hash decides; the specification tells a person more than two hashes do, unless it is the same.
  if (a.model_hash != b.model_hash) {
    a.model == b.model ? check("model weights", a.model_hash, b.model_hash)
                       : check("model", a.model, b.model);
  }
  check("tokenizer", a.tokenizer_hash, b.tokenizer_hash);
  check("chat template", a.template_hash, b.template_hash);
  check("decoding", a.decoding_json, b.decoding_json);
  check("compute type", a.compute, b.compute);
  check("cache mode", a.cache_mode, b.cache_mode);
  if (differences.empty()) return;
  throw Error(
      ErrorKind::no_baseline,
      fmt::format("{} cannot be compared with {}: they differ in {}", arm_label(candidate), arm_label(base),
                  differences),
      "only the cache may differ between the two; run both profiles with the same model and settings");
}

void refuse_drift(const ArmData& base, const ArmData& candidate) {
  std::map<std::string, int> versions;
  for (const SampleView& view : base.samples) versions.emplace(view.task, view.task_version);
  for (const SampleView& view : candidate.samples) {
    const auto found = versions.find(view.task);
    if (found == versions.end() || found->second == view.task_version) continue;
    throw Error(ErrorKind::no_baseline,
                fmt::format("the questions drifted: task {} is version {} in run {} and version {} in run {}",
                            view.task, found->second, base.run.id, view.task_version, candidate.run.id),
                "run the base again with this version of kveval");
  }
}

std::vector<Pair> pair_up(const ArmData& base, const ArmData& candidate) {
  std::map<std::string_view, const SampleView*> by_key;
  for (const SampleView& view : base.samples) by_key.emplace(view.item.item_key, &view);
  std::vector<Pair> pairs;
  for (const SampleView& view : candidate.samples) {
    const auto found = by_key.find(view.item.item_key);
    if (found == by_key.end()) continue;
    const SampleView& partner = *found->second;
    if (partner.item.prompt_sha != view.item.prompt_sha) {
      throw Error(
          ErrorKind::no_baseline,
          fmt::format("the questions drifted: sample {} (task {} version {} in run {}, version {} in run {}) "
                      "has another prompt, {} and {}",
                      view.item.item_key, view.task, partner.task_version, base.run.id, view.task_version,
                      candidate.run.id, partner.item.prompt_sha, view.item.prompt_sha),
          "run the base again with this version of kveval");
    }
    pairs.push_back({&partner, &view});
    by_key.erase(found);  // a key counts once
  }
  return pairs;
}

// Both replies end without their EOS, so a reply that stops early diverges at its end.
std::optional<int> first_divergence(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  if (at.first == a.end() && at.second == b.end()) return std::nullopt;
  return static_cast<int>(at.first - a.begin());
}

Flip make_flip(const Pair& pair, const ArmData& candidate_arm) {
  const SampleView& base = *pair.base;
  const SampleView& candidate = *pair.candidate;
  Flip flip;
  flip.loss = *base.sample.correct;
  flip.number = static_cast<size_t>(pair.candidate - candidate_arm.samples.data()) + 1;
  flip.item_key = base.item.item_key;
  flip.task = base.task;
  flip.length = base.length;
  flip.haystack = base.haystack;
  flip.index = base.item.index;
  flip.depth = base.item.depth;
  flip.expected = base.item.expected;
  flip.base_output = base.sample.output;
  flip.candidate_output = candidate.sample.output;
  flip.first_divergence = first_divergence(base.sample.output_tokens, candidate.sample.output_tokens);
  return flip;
}

CellComparison compare_cell(std::span<const Pair> pairs, bool against_run_baseline) {
  CellComparison cell;
  std::vector<const SampleView*> base_samples, candidate_samples;
  std::map<std::tuple<std::string_view, int, int>, int64_t> net_losses;
  std::map<std::optional<int>, StratumDifference> strata;
  Mean kl, top1;
  for (const Pair& pair : pairs) {
    if (!has_score(*pair.base) || !has_score(*pair.candidate)) {
      ++cell.lost_pairs;
      continue;
    }
    base_samples.push_back(pair.base);
    candidate_samples.push_back(pair.candidate);
    const bool before = *pair.base->sample.correct;
    const bool after = *pair.candidate->sample.correct;
    StratumDifference& stratum = strata[pair.base->item.stratum];
    ++stratum.pairs;
    int64_t& net = net_losses[{pair.base->task, pair.base->length, pair.base->haystack}];
    if (before && !after) {
      ++cell.losses;
      ++stratum.losses;
      ++net;
    } else if (!before && after) {
      ++cell.gains;
      ++stratum.gains;
      --net;
    }
    if (against_run_baseline) {
      kl.add(pair.candidate->sample.kl);
      top1.add(pair.candidate->sample.top1_agreement);
    }
  }
  cell.base = tally(base_samples);
  cell.candidate = tally(candidate_samples);
  cell.haystacks = net_losses.size();
  std::vector<int64_t> sums;
  sums.reserve(net_losses.size());
  for (const auto& [cluster, net] : net_losses) sums.push_back(net);
  cell.p = cell.p_holm = sign_flip_p(sums);
  for (auto& [index, stratum] : strata) {
    stratum.stratum = index;
    cell.strata.push_back(stratum);
  }
  cell.kl = kl.value();
  cell.top1_agreement = top1.value();
  return cell;
}

const ArmData& arm_named(std::span<const ArmData> arms, std::string_view name) {
  std::string names;
  for (const ArmData& data : arms) {
    if (data.arm.name == name) return data;
    names += (names.empty() ? "" : ", ") + data.arm.name;
  }
  const std::string run = arms.empty() ? "(empty)" : arms.front().run.id;
  throw Error(ErrorKind::usage, fmt::format("run {} has no arm '{}'", run, name),
              fmt::format("its arms are: {}", names.empty() ? "none" : names));
}

const ArmData* baseline_of(std::span<const ArmData> arms) {
  const auto found =
      std::find_if(arms.begin(), arms.end(), [](const ArmData& data) { return data.arm.baseline; });
  return found == arms.end() ? nullptr : &*found;
}

}  // namespace

std::vector<ArmData> load_run(const Store& store, const RunRecord& run) {
  std::vector<ArmData> arms;
  for (const ArmRecord& arm : store.arms(run.id)) {
    arms.push_back({run, arm, store.samples(arm.id), store.diagnostics(arm.id)});
  }
  return arms;
}

Tally tally(std::span<const SampleView* const> samples) {
  Tally result;
  Mean nll;
  for (const SampleView* view : samples) {
    if (!has_score(*view)) continue;
    const SampleRecord& sample = view->sample;
    const bool strict = sample.strict.value_or(false);
    const bool first = sample.first.value_or(false);
    const bool contains = sample.contains.value_or(false);
    ++result.scored;
    result.correct += *sample.correct;
    result.strict += strict;
    result.first += first;
    result.contains += contains;
    result.scorers_disagree += strict != first || first != contains;
    nll.add(sample.gold_nll);
  }
  result.gold_nll = nll.value();
  return result;
}

Tally CellSamples::tally_of(int64_t arm_id) const {
  const auto found = by_arm.find(arm_id);
  return found == by_arm.end() ? Tally{} : tally(found->second);
}

size_t CellSamples::errors_of(int64_t arm_id) const {
  const auto found = by_arm.find(arm_id);
  return found == by_arm.end() ? 0 : found->second.size() - tally(found->second).scored;
}

std::vector<CellSamples> cells_of(std::span<const ArmData> arms) {
  std::map<std::pair<std::string_view, int>, CellSamples> cells;
  std::set<std::tuple<std::string_view, int, int>> haystacks;
  CellSamples pooled;
  const auto add = [](CellSamples& cell, const ArmData& data, const SampleView& view, bool new_haystack) {
    std::vector<const SampleView*>& samples = cell.by_arm[data.arm.id];
    samples.push_back(&view);
    cell.questions = std::max(cell.questions, samples.size());
    cell.haystacks += new_haystack;
  };
  for (const ArmData& data : arms) {
    for (const SampleView& view : data.samples) {
      const bool new_haystack = haystacks.insert({view.task, view.length, view.haystack}).second;
      add(cells[{view.task, view.length}], data, view, new_haystack);
      add(pooled, data, view, new_haystack);
    }
  }
  std::vector<CellSamples> result;
  for (auto& [key, cell] : cells) {
    std::tie(cell.task, cell.length) = key;
    result.push_back(std::move(cell));
  }
  if (result.size() > 1) result.push_back(std::move(pooled));
  return result;
}

const CellComparison* find_cell(std::span<const Comparison> comparisons, int64_t candidate_arm_id,
                                std::string_view task, int length) {
  for (const Comparison& comparison : comparisons) {
    if (comparison.candidate.id != candidate_arm_id) continue;
    if (length == 0) return &comparison.pooled;
    for (const CellComparison& cell : comparison.cells) {
      if (cell.task == task && cell.length == length) return &cell;
    }
  }
  return nullptr;
}

Comparison compare(const ArmData& base, const ArmData& candidate) {
  refuse_different_settings(base, candidate);
  refuse_drift(base, candidate);
  const std::vector<Pair> pairs = pair_up(base, candidate);
  if (pairs.empty()) {
    throw Error(ErrorKind::no_baseline,
                fmt::format("{} and {} have no sample in common", arm_label(base), arm_label(candidate)),
                "compare runs of the same suite, seed and lengths");
  }

  Comparison comparison;
  comparison.base_run = base.run;
  comparison.candidate_run = candidate.run;
  comparison.base = base.arm;
  comparison.candidate = candidate.arm;
  comparison.only_base = base.samples.size() - pairs.size();
  comparison.only_candidate = candidate.samples.size() - pairs.size();

  const bool against_run_baseline = base.run.id == candidate.run.id && base.arm.baseline;
  std::map<std::pair<std::string, int>, std::vector<Pair>> by_cell;
  for (const Pair& pair : pairs) by_cell[{pair.base->task, pair.base->length}].push_back(pair);
  std::vector<double> p;
  for (const auto& [key, members] : by_cell) {
    CellComparison& cell = comparison.cells.emplace_back(compare_cell(members, against_run_baseline));
    std::tie(cell.task, cell.length) = key;
    p.push_back(cell.p);
  }
  const std::vector<double> adjusted = holm_adjusted(p);
  for (size_t i = 0; i < adjusted.size(); ++i) comparison.cells[i].p_holm = adjusted[i];
  comparison.pooled = compare_cell(pairs, against_run_baseline);

  for (const Pair& pair : pairs) {
    if (!has_score(*pair.base) || !has_score(*pair.candidate)) continue;
    if (*pair.base->sample.correct != *pair.candidate->sample.correct)
      comparison.flips.push_back(make_flip(pair, candidate));
  }
  std::stable_partition(comparison.flips.begin(), comparison.flips.end(),
                        [](const Flip& flip) { return flip.loss; });
  return comparison;
}

std::vector<Comparison> compare_run(std::span<const ArmData> arms, std::string_view base,
                                    std::string_view candidate) {
  const std::string run = arms.empty() ? "(empty)" : arms.front().run.id;
  const ArmData* base_arm = base.empty() ? baseline_of(arms) : &arm_named(arms, base);
  if (base_arm == nullptr) {
    throw Error(ErrorKind::no_baseline, fmt::format("run {} has no baseline arm", run),
                "name one with --base ARM");
  }
  if (!candidate.empty()) {
    const ArmData& candidate_arm = arm_named(arms, candidate);
    if (&candidate_arm == base_arm) {
      throw Error(ErrorKind::usage, fmt::format("arm '{}' would be compared with itself", candidate),
                  "give --base and --candidate two different arms");
    }
    return {compare(*base_arm, candidate_arm)};
  }
  std::vector<Comparison> comparisons;
  for (const ArmData& data : arms) {
    if (&data != base_arm) comparisons.push_back(compare(*base_arm, data));
  }
  if (comparisons.empty()) {
    throw Error(ErrorKind::no_baseline, fmt::format("run {} has only the arm {}", run, base_arm->arm.name),
                "name a second run to compare it with: kveval compare RUN_A RUN_B");
  }
  return comparisons;
}

std::vector<Comparison> comparisons_of(std::span<const ArmData> arms) {
  const bool comparable = arms.size() > 1 && std::any_of(arms.begin(), arms.end(), [](const ArmData& data) {
                            return data.arm.baseline && !data.samples.empty();
                          });
  return comparable ? compare_run(arms) : std::vector<Comparison>();
}

std::vector<Comparison> compare_runs(std::span<const ArmData> base_arms,
                                     std::span<const ArmData> candidate_arms, std::string_view base,
                                     std::string_view candidate) {
  // One name given means that arm in both runs.
  if (base.empty()) base = candidate;
  if (candidate.empty()) candidate = base;
  if (!base.empty()) return {compare(arm_named(base_arms, base), arm_named(candidate_arms, candidate))};

  std::vector<Comparison> comparisons;
  for (const ArmData& data : candidate_arms) {
    for (const ArmData& partner : base_arms) {
      if (partner.arm.name == data.arm.name) comparisons.push_back(compare(partner, data));
    }
  }
  if (!comparisons.empty()) return comparisons;
  const auto list = [](std::span<const ArmData> arms) {
    std::string names;
    for (const ArmData& data : arms) names += (names.empty() ? "" : ", ") + data.arm.name;
    return names.empty() ? std::string("no arms") : names;
  };
  throw Error(
      ErrorKind::no_baseline,
      fmt::format("the two runs have no profile in common: {} and {}", list(base_arms), list(candidate_arms)),
      "name what to compare with --base ARM --candidate ARM");
}

}  // namespace kveval
