// A group as the store keeps it, made up: what the tests of the store write and read back.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/random.h"
#include "harness/store.h"

namespace kveval::testing {

inline constexpr auto kImpatient = std::chrono::milliseconds(30);  // how long these tests wait for a lock

inline HaystackRecord haystack_of(int number, size_t tokens) {
  HaystackRecord haystack;
  haystack.task = "niah";
  haystack.task_version = 3;
  haystack.length = 8192;
  haystack.index = number;
  haystack.prefix_sha = "prefix" + std::to_string(number);
  Random random(static_cast<uint64_t>(number));
  for (size_t i = 0; i < tokens; ++i) {
    haystack.prefix_tokens.push_back(static_cast<int32_t>(random.below(1U << 31U)));
    haystack.prefix_text += static_cast<char>(random.below(256));
  }
  return haystack;
}

inline ItemRecord item_of(const HaystackRecord& haystack, int number) {
  ItemRecord item;
  item.item_key = "a" + std::to_string(haystack.index) + "b" + std::to_string(number);
  item.prompt_sha = "sha" + item.item_key;
  item.index = number;
  if (number != 1) item.stratum = number;
  if (number != 1) item.depth = 0.25 * number;
  item.question = "What is it?\n";
  item.expected = "42";
  item.question_tokens = {1, -1, std::numeric_limits<int32_t>::max()};
  item.target_tokens = {7};
  return item;
}

inline SampleRecord ok_sample(bool correct) {
  SampleRecord sample;
  sample.correct = sample.strict = correct;
  sample.first = true;
  sample.contains = true;
  sample.output = std::string("42\0\x1b[31m\xff", 9);
  sample.output_tokens = {7, 8};
  sample.stop = "length";
  sample.gold_nll = 1.0 / 3;
  sample.kl = 0.125;
  sample.top1_agreement = 0.5;
  sample.first_divergence = 1;
  sample.milliseconds = 2.5;
  return sample;
}

inline SampleRecord error_sample() {
  SampleRecord sample;
  sample.state = SampleState::error;
  sample.error = "out of context";
  sample.milliseconds = 1;
  return sample;
}

// Three questions: right, wrong without details, an error.
inline GroupResult group_of(const std::vector<ArmRecord>& arms, int number, size_t tokens = 100) {
  GroupResult group;
  group.haystack = haystack_of(number, tokens);
  for (int i = 0; i < 3; ++i) group.items.push_back(item_of(group.haystack, i));
  SampleRecord bare = ok_sample(false);
  bare.kl.reset();
  bare.top1_agreement.reset();
  bare.first_divergence.reset();
  bare.gold_nll.reset();
  for (const ArmRecord& arm : arms) {
    group.arms.push_back({arm.id, {ok_sample(true), bare, error_sample()}, {}});
    for (const bool keys : {true, false}) {
      group.arms.back().diagnostics.push_back(
          {arm.id, 0, 1, 0, keys, 10, 2, 3, keys ? 4.5 : 1.0 + number, 0.5, 0.25});
    }
  }
  return group;
}
}  // namespace kveval::testing
