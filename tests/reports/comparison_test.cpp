#include "reports/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "tests/reports/sample_data.h"

namespace kveval {
namespace {

using testing::HasSubstr;
using testing_data::add_cell;
using testing_data::make_arm;
using testing_data::make_run;

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) { return error; }
  ADD_FAILURE() << "no error";
  return Error(ErrorKind::run, "");
}

// Five haystacks of four at 8k, three at 32k, one error in each arm.
struct Case {
  ArmData base, candidate;
  Case() {
    const RunRecord run = make_run("run-a");
    base = make_arm(run, 1, "fp16", true);
    candidate = make_arm(run, 2, "e4m3");
    add_cell(base, 8192, {"RRRR", "RRRR", "RRRR", "RRRW", "RRRE"});
    add_cell(candidate, 8192, {"WWWR", "RRRR", "WRRR", "RRRR", "RERR"});
    add_cell(base, 32768, {"RR", "RR", "RW"});
    add_cell(candidate, 32768, {"WW", "WR", "RW"});
    for (SampleView& view : candidate.samples) {
      if (view.sample.state != SampleState::ok) continue;
      view.sample.kl = view.length == 8192 ? 0.5 : 1.5;
      view.sample.top1_agreement = view.length == 8192 ? 0.75 : 0.5;
    }
  }
};

TEST(Comparison, CountsByHand) {
  const Case data;
  const Comparison comparison = compare(data.base, data.candidate);
  ASSERT_EQ(comparison.cells.size(), 2u);

  const CellComparison& short_cell = comparison.cells[0];
  EXPECT_EQ(short_cell.task, "niah");
  EXPECT_EQ(short_cell.length, 8192);
  EXPECT_EQ(short_cell.pairs(), 18u);  // 20 less one error in each arm
  EXPECT_EQ(short_cell.lost_pairs, 2u);
  EXPECT_EQ(short_cell.base.correct, 17u);
  EXPECT_EQ(short_cell.candidate.correct, 14u);
  EXPECT_EQ(short_cell.losses, 4u);
  EXPECT_EQ(short_cell.gains, 1u);
  EXPECT_EQ(short_cell.haystacks, 5u);
  // Haystack sums 3, 1, -1: of the 8 sign vectors, +++ and ++- and +-+ reach 3.
  EXPECT_EQ(short_cell.p, 3.0 / 8);
  EXPECT_DOUBLE_EQ(*short_cell.base.gold_nll, (17 * 0.25 + 2.25) / 18);
  EXPECT_DOUBLE_EQ(*short_cell.candidate.gold_nll, (14 * 0.25 + 4 * 2.25) / 18);
  EXPECT_DOUBLE_EQ(*short_cell.kl, 0.5);
  EXPECT_DOUBLE_EQ(*short_cell.top1_agreement, 0.75);
  EXPECT_FALSE(short_cell.floor());

  const CellComparison& long_cell = comparison.cells[1];
  EXPECT_EQ(long_cell.losses, 3u);
  EXPECT_EQ(long_cell.gains, 0u);
  EXPECT_EQ(long_cell.p, 1.0 / 4);  // sums 2, 1
  EXPECT_EQ(long_cell.p_holm, 2.0 / 4);
  EXPECT_EQ(short_cell.p_holm, 2.0 / 4);  // 3/8 x 1, but not below the smaller p's

  const CellComparison& all = comparison.pooled;
  EXPECT_EQ(all.pairs(), 24u);
  EXPECT_EQ(all.losses, 7u);
  EXPECT_EQ(all.gains, 1u);
  EXPECT_EQ(all.haystacks, 8u);
  EXPECT_EQ(all.lost_pairs, 2u);
  // Sums 3, 1, -1, 2, 1, total 6: the weights 3, 2, 1, 1, 1 reach 6 as 8 (1 vector) and as 6 (3 vectors)
  // of 32.
  EXPECT_EQ(all.p, 4.0 / 32);
  EXPECT_DOUBLE_EQ(*all.kl, (18 * 0.5 + 6 * 1.5) / 24);
  EXPECT_EQ(comparison.only_base, 0u);
  EXPECT_EQ(comparison.only_candidate, 0u);
}

TEST(Comparison, FlipsAreLossesFirst) {
  const Case data;
  const Comparison comparison = compare(data.base, data.candidate);
  ASSERT_EQ(comparison.flips.size(), 8u);
  for (size_t i = 0; i < 7; ++i) EXPECT_TRUE(comparison.flips[i].loss) << i;
  EXPECT_FALSE(comparison.flips[7].loss);
  const Flip& flip = comparison.flips[0];
  EXPECT_EQ(flip.item_key, "niah-8192-0-0");
  EXPECT_EQ(flip.number, 1u);
  EXPECT_EQ(comparison.flips[3].number, 9u);  // the third haystack's first question
  EXPECT_EQ(flip.expected, "10000");
  EXPECT_EQ(flip.base_output, "10000");
  EXPECT_EQ(flip.candidate_output, "99999");
  EXPECT_EQ(flip.first_divergence, 1);
}

TEST(Comparison, DivergenceOfAnAnswerThatEndsEarly) {
  Case data;
  data.candidate.samples[0].sample.output_tokens = {1, 2};
  EXPECT_EQ(compare(data.base, data.candidate).flips[0].first_divergence, 2);
  data.candidate.samples[0].sample.output_tokens = {1, 2, 3};
  EXPECT_EQ(compare(data.base, data.candidate).flips[0].first_divergence, std::nullopt);
}

TEST(Comparison, OrderOfTheSamplesDoesNotMatter) {
  Case data;
  const Comparison before = compare(data.base, data.candidate);
  std::reverse(data.base.samples.begin(), data.base.samples.end());
  const Comparison after = compare(data.base, data.candidate);
  EXPECT_EQ(before.pooled.p, after.pooled.p);
  EXPECT_EQ(before.pooled.losses, after.pooled.losses);
  EXPECT_EQ(before.cells.size(), after.cells.size());
}

TEST(Comparison, AnErrorIsNeverAWrongAnswer) {
  Case data;
  for (SampleView& view : data.candidate.samples) {
    if (view.length != 32768) continue;
    view.sample = SampleRecord{};
    view.sample.state = SampleState::error;
  }
  const CellComparison cell = compare(data.base, data.candidate).cells[1];
  EXPECT_EQ(cell.pairs(), 0u);
  EXPECT_EQ(cell.lost_pairs, 6u);
  EXPECT_EQ(cell.losses, 0u);
  EXPECT_EQ(cell.p, 1.0);
  EXPECT_FALSE(cell.floor());
  EXPECT_EQ(cell.base.gold_nll, std::nullopt);
}

TEST(Comparison, FloorCellsAreFlagged) {
  const RunRecord run = make_run("run-a");
  ArmData base = make_arm(run, 1, "fp16", true);
  ArmData candidate = make_arm(run, 2, "e4m3");
  add_cell(base, 8192, {"RWWWW", "WWWWW"});
  add_cell(candidate, 8192, {"WWWWW", "WWWWW"});
  EXPECT_TRUE(compare(base, candidate).cells[0].floor());
  base.samples[1].sample.correct = true;  // 2 of 10: at the floor, not below it
  EXPECT_FALSE(compare(base, candidate).cells[0].floor());
}

TEST(Comparison, ScorersSideBySide) {
  Case data;
  data.candidate.samples[0].sample.contains = true;  // "the number is 10000": contained, not the whole answer
  const Tally tally = compare(data.base, data.candidate).cells[0].candidate;
  EXPECT_EQ(tally.scorers_disagree, 1u);
  EXPECT_EQ(tally.strict, 14u);
  EXPECT_EQ(tally.first, 14u);
  EXPECT_EQ(tally.contains, 15u);
}

TEST(Comparison, DivergenceFromAnotherBaselineIsNotShown) {
  const Case data;
  EXPECT_EQ(compare(data.candidate, data.base).pooled.kl, std::nullopt);
  ArmData base = data.base;
  base.run.id = "run-b";
  EXPECT_EQ(compare(base, data.candidate).pooled.kl, std::nullopt);
  EXPECT_EQ(compare(base, data.candidate).pooled.losses, 7u);
}

TEST(Comparison, SamplesWithoutPartnerAreCounted) {
  Case data;
  data.base.samples.erase(data.base.samples.begin());
  data.base.samples.erase(data.base.samples.begin());
  data.candidate.samples.pop_back();
  const Comparison comparison = compare(data.base, data.candidate);
  EXPECT_EQ(comparison.only_candidate, 2u);
  EXPECT_EQ(comparison.only_base, 1u);
  EXPECT_EQ(comparison.pooled.losses, 5u);
}

TEST(Comparison, AKeyCountsOnce) {
  Case data;
  data.candidate.samples.push_back(data.candidate.samples.front());
  const Comparison comparison = compare(data.base, data.candidate);
  EXPECT_EQ(comparison.pooled.losses, 7u);
  EXPECT_EQ(comparison.only_candidate, 1u);
}

TEST(Refusal, EverySettingThatDiffersIsNamed) {
  const struct {
    std::string RunRecord::*field;
    const char* name;
  } settings[] = {{&RunRecord::model_hash, "model weights"},    {&RunRecord::tokenizer_hash, "tokenizer"},
                  {&RunRecord::template_hash, "chat template"}, {&RunRecord::decoding_json, "decoding"},
                  {&RunRecord::compute, "compute type"},        {&RunRecord::cache_mode, "cache mode"}};
  for (const auto& setting : settings) {
    Case data;
    data.candidate.run.*setting.field = "other";
    const Error error = error_of([&] { compare(data.base, data.candidate); });
    EXPECT_EQ(error.kind, ErrorKind::no_baseline);
    EXPECT_THAT(error.what(), HasSubstr(std::string("differ in ") + setting.name));
    EXPECT_FALSE(error.hint.empty());
  }
  Case data;
  data.candidate.run.model = "phantom:kappa=40";
  data.candidate.run.model_hash = "other";
  data.candidate.run.compute = "bf16";
  EXPECT_THAT(
      error_of([&] { compare(data.base, data.candidate); }).what(),
      HasSubstr("differ in model (phantom:kappa=80 and phantom:kappa=40), compute type (float32 and bf16)"));
}

TEST(Refusal, WhatCannotChangeResultsMayDiffer) {
  Case data;
  data.candidate.run.host = "another";
  data.candidate.run.simd = "avx512";
  data.candidate.run.threads = 64;
  data.candidate.run.git_sha = "def456";
  EXPECT_EQ(compare(data.base, data.candidate).pooled.losses, 7u);
}

TEST(Refusal, DriftedPrompt) {
  Case data;
  data.candidate.samples[3].item.prompt_sha = "changed";
  const Error error = error_of([&] { compare(data.base, data.candidate); });
  EXPECT_EQ(error.kind, ErrorKind::no_baseline);
  EXPECT_THAT(error.what(), HasSubstr("niah-8192-0-3"));
  EXPECT_THAT(error.what(), HasSubstr("task niah version 1 in run run-a, version 1 in run run-a"));
}

TEST(Refusal, DriftedTaskVersion) {
  Case data;
  for (SampleView& view : data.candidate.samples) {
    view.task_version = 2;
    view.item.item_key += "-v2";
  }
  data.candidate.run.id = "run-b";
  const Error error = error_of([&] { compare(data.base, data.candidate); });
  EXPECT_EQ(error.kind, ErrorKind::no_baseline);
  EXPECT_THAT(error.what(), HasSubstr("task niah is version 1 in run run-a and version 2 in run run-b"));
}

TEST(Refusal, NothingInCommon) {
  Case data;
  for (SampleView& view : data.candidate.samples) view.item.item_key += "-other-seed";
  EXPECT_EQ(error_of([&] { compare(data.base, data.candidate); }).kind, ErrorKind::no_baseline);
}

TEST(CompareRun, EveryOtherArmAgainstTheBaseline) {
  const Case data;
  ArmData third = data.candidate;
  third.arm.id = 3;
  third.arm.name = "int8";
  const std::vector<ArmData> arms{data.candidate, data.base, third};
  const std::vector<Comparison> all = compare_run(arms);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].base.name, "fp16");
  EXPECT_EQ(all[0].candidate.name, "e4m3");
  EXPECT_EQ(all[1].candidate.name, "int8");

  const std::vector<Comparison> named = compare_run(arms, "int8", "fp16");
  ASSERT_EQ(named.size(), 1u);
  EXPECT_EQ(named[0].base.name, "int8");
  EXPECT_EQ(named[0].candidate.name, "fp16");
  EXPECT_EQ(named[0].pooled.losses, 1u);
}

TEST(CompareRun, Refusals) {
  const Case data;
  const std::vector<ArmData> arms{data.base, data.candidate};
  const Error unknown = error_of([&] { compare_run(arms, "fp8"); });
  EXPECT_EQ(unknown.kind, ErrorKind::usage);
  EXPECT_THAT(unknown.hint, HasSubstr("fp16, e4m3"));
  EXPECT_EQ(error_of([&] { compare_run(arms, "e4m3", "e4m3"); }).kind, ErrorKind::usage);
  EXPECT_EQ(error_of([&] { compare_run(std::vector<ArmData>{data.base}); }).kind, ErrorKind::no_baseline);
  EXPECT_EQ(error_of([&] { compare_run(std::vector<ArmData>{data.candidate}); }).kind,
            ErrorKind::no_baseline);
  EXPECT_EQ(error_of([&] { compare_run({}); }).kind, ErrorKind::no_baseline);
}

TEST(CompareRuns, MatchesArmsByName) {
  const Case data;
  std::vector<ArmData> before{data.base, data.candidate};
  std::vector<ArmData> after = before;
  for (ArmData& arm : after) arm.run.id = "run-b";
  after[1].samples[1].sample.correct = true;
  const std::vector<Comparison> all = compare_runs(before, after);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0].pooled.losses + all[0].pooled.gains, 0u);
  EXPECT_EQ(all[1].pooled.gains, 1u);

  before.erase(before.begin() + 1);
  after.erase(after.begin());
  const Error apart = error_of([&] { compare_runs(before, after); });
  EXPECT_EQ(apart.kind, ErrorKind::no_baseline);
  EXPECT_THAT(apart.what(), HasSubstr("fp16 and e4m3"));
  EXPECT_EQ(compare_runs(before, after, "fp16", "e4m3").size(), 1u);
  EXPECT_EQ(error_of([&] { compare_runs(before, after, "fp16"); }).kind, ErrorKind::usage);
}

}  // namespace
}  // namespace kveval
