#include "harness/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "engine/fake_engine.h"
#include "harness/record.h"
#include "tests/harness/fixtures.h"

namespace kveval {
namespace {

using ::testing::HasSubstr;

// ---- numbers worked out by hand

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SampleGroup two_questions() {
  SampleGroup group;
  group.task = "niah";
  group.task_version = 1;
  group.length = 2048;
  group.haystack = 7;
  group.prefix = {1, 2, 3};
  group.prefix_text = "hay";
  group.prefix_sha = "sha";
  for (int i = 0; i < 2; ++i) {
    Sample sample;
    sample.item_key = "key" + std::to_string(i);
    sample.prompt_sha = "prompt" + std::to_string(i);
    sample.index = i;
    sample.stratum = i;
    sample.depth = 0.5 * i;
    sample.question = "question";
    sample.expected = "481793";
    sample.question_tokens = {10 + i};
    sample.target = {0, 1};
    group.samples.push_back(sample);
  }
  return group;
}

std::vector<PlannedArm> planned_arms(const std::string& list) {
  FakeScript script;
  const FakeEngine engine(script);
  return plan_arms(parse_profile_list(list), engine);
}

std::vector<ArmRecord> records_with_ids(const std::vector<PlannedArm>& arms) {
  Plan plan;
  plan.arms = arms;
  std::vector<ArmRecord> records = arm_records(plan);
  for (ArmRecord& record : records) record.id = 100 + record.position;
  return records;
}

GroupResult run_one(const SampleGroup& group, const std::string& profiles, FakeScript script) {
  FakeEngine engine(std::move(script));
  const std::vector<PlannedArm> arms = planned_arms(profiles);
  return run_group(group, records_with_ids(arms), arms, engine, [](size_t, uint64_t) { return true; });
}

Reply answer_of(Tokens tokens, std::string text, Stop stop) {
  Reply reply;
  reply.tokens = std::move(tokens);
  reply.text = std::move(text);
  reply.stop = stop;
  reply.timing.reply_seconds = 0.25;
  return reply;
}

bool is_baseline(const FakeTurn& turn) { return canonical(turn.profile) == "fp16"; }

// Position 0: the same in both arms. Position 1: base (1/2, 1/4, 1/8, 1/8), e4m3 (1/8, 1/2, 1/4, 1/8).
FakeScript hand_script() {
  FakeScript script;
  script.info.vocabulary = 4;
  script.logits = [](const FakeTurn& turn, size_t position) {
    if (position == 0 || is_baseline(turn)) return logits_of({0.5, 0.25, 0.125, 0.125});
    return logits_of({0.125, 0.5, 0.25, 0.125});
  };
  script.generate = replies_from({{"fp16",
                                   {{{10}, answer_of({4, 8, 1}, "481793", Stop::string)},
                                    {{11}, answer_of({4, 8, 1}, " 481793 .", Stop::length)}}},
                                  {"e4m3",
                                   {{{10}, answer_of({4, 9, 1}, "491793", Stop::eos)},
                                    {{11}, answer_of({4, 8}, "it is 481793", Stop::eos)}}}});
  script.diagnostics = [](const PromptGroup&, const Profile& profile) {
    return std::vector<CacheDiagnostic>{
        {1, 2, false, 100, 3, canonical(profile) == "fp16" ? 0U : 4U, 1.5F, 0.25, 16.0}};
  };
  return script;
}

TEST(RunGroup, NumbersWorkedOutByHand) {
  // e4m3 is named first, and still the baseline runs first.
  const GroupResult result = run_one(two_questions(), "e4m3,fp16", hand_script());
  ASSERT_EQ(result.arms.size(), 2U);
  EXPECT_EQ(result.arms[0].arm_id, 100);
  const std::vector<SampleRecord>& base = result.arms[0].samples;
  const std::vector<SampleRecord>& e4m3 = result.arms[1].samples;
  ASSERT_EQ(base.size(), 2U);
  ASSERT_EQ(e4m3.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(base[i].state, SampleState::ok);
    EXPECT_EQ(e4m3[i].state, SampleState::ok);
    // -ln 1/2 - ln 1/4 and -ln 1/2 - ln 1/2.
    EXPECT_NEAR(base[i].gold_nll.value(), 3 * std::log(2.0), 1e-6);
    EXPECT_NEAR(e4m3[i].gold_nll.value(), 2 * std::log(2.0), 1e-6);
    EXPECT_EQ(base[i].kl, std::nullopt);
    EXPECT_EQ(base[i].top1_agreement, std::nullopt);
    EXPECT_EQ(base[i].first_divergence, std::nullopt);
    // Mean of 0 and 1/2 ln 4 + 1/4 ln 1/2 + 1/8 ln 1/2 = 5/8 ln 2; the other way round it would be 1/2 ln 2.
    EXPECT_NEAR(e4m3[i].kl.value(), 5 * std::log(2.0) / 16, 1e-6);
    EXPECT_EQ(e4m3[i].top1_agreement, 0.5);
    EXPECT_EQ(base[i].milliseconds, 250);
  }
  EXPECT_EQ(e4m3[0].first_divergence, 1);
  EXPECT_EQ(e4m3[1].first_divergence, 2);

  EXPECT_EQ(base[0].correct, true);
  EXPECT_EQ(base[0].strict, true);
  EXPECT_EQ(base[1].strict, false);
  EXPECT_EQ(base[1].first, true);
  EXPECT_EQ(base[1].contains, true);
  EXPECT_EQ(e4m3[0].correct, false);
  EXPECT_EQ(e4m3[0].contains, false);
  EXPECT_EQ(e4m3[1].first, false);
  EXPECT_EQ(e4m3[1].contains, true);
  for (const auto& samples : {base, e4m3}) {
    for (const SampleRecord& s : samples) {
      const Scores scores{s.strict.value(), s.first.value(), s.contains.value()};
      EXPECT_EQ(s.correct, scores.by(task_named("niah").primary));
    }
  }
  EXPECT_EQ(base[0].stop, "string");
  EXPECT_EQ(base[1].stop, "length");
  EXPECT_EQ(e4m3[0].stop, "eos");
  EXPECT_EQ(e4m3[1].output, "it is 481793");
  EXPECT_EQ(e4m3[1].output_tokens, (std::vector<int32_t>{4, 8}));

  ASSERT_EQ(result.arms[1].diagnostics.size(), 1U);
  const DiagnosticRecord& diagnostic = result.arms[1].diagnostics[0];
  EXPECT_EQ(diagnostic.arm_id, 101);
  EXPECT_EQ(diagnostic.layer, 1);
  EXPECT_EQ(diagnostic.kv_head, 2);
  EXPECT_FALSE(diagnostic.keys);
  EXPECT_EQ(diagnostic.elements, 100);
  EXPECT_EQ(diagnostic.clipped, 3);
  EXPECT_EQ(diagnostic.flushed, 4);
  EXPECT_EQ(diagnostic.absolute_max, 1.5);
  EXPECT_EQ(diagnostic.error_energy, 0.25);
  EXPECT_EQ(diagnostic.energy, 16.0);

  ASSERT_EQ(result.items.size(), 2U);
  EXPECT_EQ(result.items[1].item_key, "key1");
  EXPECT_EQ(result.items[1].prompt_sha, "prompt1");
  EXPECT_EQ(result.items[1].depth, 0.5);
  EXPECT_EQ(result.items[1].target_tokens, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(result.haystack.prefix_tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(result.haystack.index, 7);
}

TEST(RunGroup, WithoutABaselineNothingIsMeasuredAgainstOne) {
  const GroupResult result = run_one(two_questions(), "e4m3,int8", hand_script());
  for (const auto& arm : result.arms) {
    for (const SampleRecord& sample : arm.samples) {
      EXPECT_EQ(sample.kl, std::nullopt);
      EXPECT_EQ(sample.top1_agreement, std::nullopt);
      EXPECT_EQ(sample.first_divergence, std::nullopt);
    }
  }
}

TEST(RunGroup, AnErrorIsNeverAWrongAnswer) {
  FakeScript script = hand_script();
  const auto generate = script.generate;
  // Question 0 fails in e4m3 only, question 1 in the baseline only.
  script.generate = [generate](const FakeTurn& turn) {
    Reply reply = generate(turn);
    if (is_baseline(turn) == (turn.turn.tokens == Tokens{11})) {
      reply.error = Error(ErrorKind::run, "longer than the context");
    }
    return reply;
  };
  const GroupResult result = run_one(two_questions(), "fp16,e4m3", script);
  const SampleRecord& failed = result.arms[1].samples[0];
  EXPECT_EQ(failed.state, SampleState::error);
  EXPECT_EQ(failed.correct, std::nullopt);
  EXPECT_EQ(failed.strict, std::nullopt);
  EXPECT_EQ(failed.gold_nll, std::nullopt);
  EXPECT_EQ(failed.kl, std::nullopt);
  EXPECT_THAT(failed.error, HasSubstr("longer than the context"));
  EXPECT_EQ(result.arms[0].samples[0].state, SampleState::ok);
  EXPECT_EQ(result.arms[0].samples[1].state, SampleState::error);
  const SampleRecord& without_base = result.arms[1].samples[1];
  EXPECT_EQ(without_base.state, SampleState::ok);
  EXPECT_EQ(without_base.kl, std::nullopt);
  EXPECT_EQ(without_base.top1_agreement, std::nullopt);
  EXPECT_EQ(without_base.first_divergence, std::nullopt);
}

TEST(RunGroup, AFailedLikelihoodIsAnErrorToo) {
  FakeScript script = hand_script();
  script.score_error = [](const FakeTurn& turn) -> std::optional<Error> {
    if (is_baseline(turn)) return std::nullopt;
    return Error(ErrorKind::run, "no memory for logits");
  };
  const GroupResult result = run_one(two_questions(), "fp16,e4m3", script);
  EXPECT_EQ(result.arms[0].samples[0].state, SampleState::ok);
  EXPECT_EQ(result.arms[1].samples[0].state, SampleState::error);
  EXPECT_EQ(result.arms[1].samples[0].error, "no memory for logits");

  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    script = hand_script();
    script.logits = [broken](const FakeTurn&, size_t) { return std::vector<float>{0, broken, 0, 0}; };
    const GroupResult unbounded = run_one(two_questions(), "fp16,e4m3", script);
    for (const auto& arm : unbounded.arms) EXPECT_EQ(arm.samples[0].state, SampleState::error);
  }
}

}  // namespace
}  // namespace kveval
