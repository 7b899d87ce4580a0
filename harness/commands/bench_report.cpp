#include "harness/commands/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/commands/terminal_table.h"
#include "reports/text.h"

namespace kveval {
namespace {

std::string whole_percent(double share) { return fmt::format("{:.0f}%", 100 * share); }

}  // namespace

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// The prompt's last token is fed with the answer.
double prefill_tokens_per_second(const Measurement& m) {
  return double(m.tokens - 1) / median(m.prefill_seconds);
}

double decode_tokens_per_second(const Measurement& m) { return 1 / median(m.decode_seconds); }

double prefill_of_ceiling(const Measurement& m, const cpu::Ceilings& ceilings) {
  return m.prefill_flops / median(m.prefill_seconds) / ceilings.flops_per_second;
}

double decode_of_ceiling(const Measurement& m, const cpu::Ceilings& ceilings) {
  const double reading = m.decode_bytes / ceilings.bytes_per_second;
  const double arithmetic = m.decode_flops / ceilings.flops_per_second;
  return std::max(reading, arithmetic) / median(m.decode_seconds);
}

double questions_of_model(const Measurement& m) {
  std::vector<double> ratios;  // of one round: what disturbs it disturbs both
  for (size_t i = 0; i < m.questions_seconds.size(); i++)
    ratios.push_back(m.questions_seconds[i] / m.questions_prefix_seconds[i]);
  return median(std::move(ratios)) / (m.questions_flops / m.prefill_flops);
}

std::string bench_table(const BenchResult& result) {
  std::vector<TextTable::Column> columns = {{"profile"},
                                            {"tokens", Align::right},
                                            {"prefill s", Align::right},
                                            {"tokens/s", Align::right},
                                            {"of ceiling", Align::right},
                                            {"decode ms", Align::right},
                                            {"tokens/s", Align::right},
                                            {"of ceiling", Align::right}};
  if (result.questions > 0) {
    columns.push_back(
        {fmt::format("{} question{} s", result.questions, result.questions == 1 ? "" : "s"), Align::right});
    columns.push_back({"cost/model", Align::right});
  }
  columns.push_back({"cache B/token", Align::right});
  TextTable table(columns);
  for (const Measurement& m : result.all) {
    std::vector<std::string> row = {canonical(m.profile),
                                    std::to_string(m.tokens),
                                    fmt::format("{:.2f}", median(m.prefill_seconds)),
                                    fmt::format("{:.0f}", prefill_tokens_per_second(m)),
                                    whole_percent(prefill_of_ceiling(m, result.ceilings)),
                                    fmt::format("{:.2f}", median(m.decode_seconds) * 1e3),
                                    fmt::format("{:.1f}", decode_tokens_per_second(m)),
                                    whole_percent(decode_of_ceiling(m, result.ceilings))};
    if (result.questions > 0) {
      row.push_back(fmt::format("{:.2f}", median(m.questions_seconds)));
      row.push_back(fmt::format("{:.2f}", questions_of_model(m)));
    }
    row.push_back(fmt::format("{:.0f}", m.cache_bytes));
    table.add(row);
  }
  const EngineInfo& engine = result.engine;
  return fmt::format("{} ({}, {}, {}), median of {}; ceilings: {:.0f} GFLOP/s, {:.1f} GB/s\n{}", engine.model,
                     engine.compute, engine.simd, counted(size_t(engine.threads), "thread"), result.rounds,
                     result.ceilings.flops_per_second / 1e9, result.ceilings.bytes_per_second / 1e9,
                     table.text());
}

nlohmann::json bench_json(const BenchResult& result) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Measurement& m : result.all) {
    nlohmann::json row = {{"profile", canonical(m.profile)},
                          {"tokens", m.tokens},
                          {"cache_bytes_per_token", m.cache_bytes},
                          {"prefill_seconds", m.prefill_seconds},
                          {"prefill_tokens_per_second", prefill_tokens_per_second(m)},
                          {"prefill_flops", m.prefill_flops},
                          {"prefill_of_ceiling", prefill_of_ceiling(m, result.ceilings)},
                          {"prefill_user_cpu_seconds", m.prefill_cpu_seconds},
                          {"decode_seconds_per_token", m.decode_seconds},
                          {"decode_tokens_per_second", decode_tokens_per_second(m)},
                          {"decode_bytes", m.decode_bytes},
                          {"decode_flops", m.decode_flops},
                          {"decode_of_ceiling", decode_of_ceiling(m, result.ceilings)},
                          {"decode_user_cpu_seconds", m.decode_cpu_seconds}};
    if (result.questions > 0) {
      row["questions_seconds"] = m.questions_seconds;
      row["questions_prefix_seconds"] = m.questions_prefix_seconds;
      row["questions_flops"] = m.questions_flops;
      row["questions_of_model"] = questions_of_model(m);
    }
    rows.push_back(std::move(row));
  }
  const EngineInfo& engine = result.engine;
  return {{"schema", "kveval.bench/1"},
          {"model", engine.model},
          {"model_hash", engine.model_hash},
          {"simd", engine.simd},
          {"threads", engine.threads},
          {"compute", engine.compute},
          {"decoded_tokens", result.decoded_tokens},
          {"rounds", result.rounds},
          {"questions", result.questions},
          {"ceiling",
           {{"flops_per_second", result.ceilings.flops_per_second},
            {"bytes_per_second", result.ceilings.bytes_per_second}}},
          {"results", std::move(rows)}};
}

}  // namespace kveval
