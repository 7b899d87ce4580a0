// Runs made up in memory: the reports are functions of the store's records, so no test needs a database.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "reports/comparison.h"

namespace kveval::testing_data {

inline RunRecord make_run(const std::string& id) {
  RunRecord run;
  run.id = id;
  run.suite = "niah";
  run.suite_hash = "5117e";
  run.config_json = R"({"seed":1})";
  run.status = RunStatus::complete;
  run.started_ms = 1795977753000;  // 2026-11-29 18:42:33 UTC
  run.finished_ms = run.started_ms + 41000;
  run.seed = 1;
  run.model = "phantom:kappa=80";
  run.model_hash = "0de1";
  run.tokenizer_hash = "70ce";
  run.decoding_json = R"({"max_tokens":16})";
  run.compute = "float32";
  run.cache_mode = "as-you-go";
  run.tool_version = "0.1.0";
  run.git_sha = "abc123";
  run.git_dirty = false;
  run.host = "host";
  run.simd = "avx2";
  run.argv_json = R"(["kveval","run","niah"])";
  run.threads = 2;
  return run;
}

inline ArmData make_arm(const RunRecord& run, int64_t id, const std::string& name, bool baseline = false) {
  ArmData data;
  data.run = run;
  data.arm.id = id;
  data.arm.run_id = run.id;
  data.arm.position = static_cast<int>(id);
  data.arm.name = name;
  data.arm.baseline = baseline;
  data.arm.profile_json = fmt::format(R"({{"k":{{"format":"{0}"}},"v":{{"format":"{0}"}}}})", name);
  data.arm.profile_hash = "hash-of-" + name;
  data.arm.k_format = data.arm.v_format = name;
  data.arm.cache_bytes_per_token = baseline ? 4096 : 2048;
  return data;
}

// `answer` 'R' right, 'W' wrong, 'E' error.
inline SampleView make_sample(int length, int haystack, int index, char answer,
                              const std::string& task = "niah") {
  SampleView view;
  view.item.item_key = fmt::format("{}-{}-{}-{}", task, length, haystack, index);
  view.item.prompt_sha = "prompt-of-" + view.item.item_key;
  view.item.index = index;
  view.item.stratum = index;
  view.item.depth = 0.125 + 0.25 * index;
  view.item.question = "What is the number of the door?";
  view.item.expected = fmt::format("{}", 10000 + 100 * haystack + index);
  view.task = task;
  view.task_version = 1;
  view.length = length;
  view.haystack = haystack;
  SampleRecord& sample = view.sample;
  if (answer == 'E') {
    sample.state = SampleState::error;
    sample.error = "out of memory";
    return view;
  }
  const bool right = answer == 'R';
  sample.correct = sample.strict = sample.first = sample.contains = right;
  sample.output = right ? view.item.expected : "99999";
  sample.output_tokens = right ? std::vector<int32_t>{1, 2, 3} : std::vector<int32_t>{1, 7, 3};
  sample.stop = "string";
  sample.gold_nll = right ? 0.25 : 2.25;
  sample.milliseconds = 5;
  return view;
}

// One cell: a word for each haystack, a letter for each question.
inline void add_cell(ArmData& data, int length, const std::vector<std::string>& haystacks,
                     const std::string& task = "niah") {
  for (size_t h = 0; h < haystacks.size(); ++h) {
    for (size_t i = 0; i < haystacks[h].size(); ++i) {
      data.samples.push_back(
          make_sample(length, static_cast<int>(h), static_cast<int>(i), haystacks[h][i], task));
    }
  }
}

}  // namespace kveval::testing_data
