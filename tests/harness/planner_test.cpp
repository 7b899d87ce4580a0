#include "harness/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/fake_engine.h"
#include "tests/harness/fixtures.h"

namespace kveval {
namespace {

using testing::ByteTokenizer;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

const ByteTokenizer kTokenizer;

FakeEngine engine_of(int context, const char* compute = "float32") {
  FakeScript script;
  script.info.model = "fake";
  script.info.context = context;
  script.info.compute = compute;
  script.info.vocabulary = kTokenizer.vocabulary_size();
  script.info.tokenizer = &kTokenizer;
  script.seconds_per_token = 0.5;
  script.bytes_per_token = 7;
  return FakeEngine(script);
}

std::vector<std::string> names_of(const std::vector<PlannedArm>& arms) {
  std::vector<std::string> names;
  for (const PlannedArm& arm : arms) names.push_back(arm.name + (arm.baseline ? "*" : ""));
  return names;
}

Suite niah(std::vector<int> lengths, int haystacks, int needles) {
  Suite suite = load_suite("niah");
  suite.families.front().lengths = std::move(lengths);
  suite.families.front().haystacks = haystacks;
  suite.families.front().parameters =
      task_named("niah").resolve_parameters(nlohmann::json{{"needles", needles}});
  return suite;
}

TEST(Planner, TheBaselineIsTheFirstOfFp16Bf16F32) {
  const FakeEngine engine = engine_of(8192);
  const auto planned = [&](const char* list) {
    return names_of(plan_arms(parse_profile_list(list), engine));
  };
  EXPECT_THAT(planned("fp16,int8,e4m3"), ElementsAre("fp16*", "int8", "e4m3"));
  EXPECT_THAT(planned("int8,f32,bf16,fp16,e4m3"), ElementsAre("fp16*", "int8", "f32", "bf16", "e4m3"));
  EXPECT_THAT(planned("int8,f32,bf16"), ElementsAre("bf16*", "int8", "f32"));
  EXPECT_THAT(planned("int8,f32"), ElementsAre("f32*", "int8"));
  EXPECT_THAT(planned("int8,e5m2"), ElementsAre("int8", "e5m2"));
  EXPECT_THAT(planned("k=fp16,v=e4m3"), ElementsAre("k=fp16,v=e4m3"));
}

TEST(Planner, TheBaselineUnderBfloatArithmeticIsBf16) {
  const FakeEngine engine = engine_of(8192, "bfloat16");
  const auto planned = [&](const char* list) {
    return names_of(plan_arms(parse_profile_list(list), engine));
  };
  EXPECT_THAT(planned("fp16,int8,bf16"), ElementsAre("bf16*", "fp16", "int8"));
  EXPECT_THAT(planned("int8,fp16"), ElementsAre("fp16*", "int8"));
}

TEST(Planner, RefusesProfilesThatCannotBeCompared) {
  const FakeEngine engine = engine_of(8192);
  const auto refusal = [&](const char* list) {
    return error_of([&] { plan_arms(parse_profile_list(list), engine); });
  };
  EXPECT_THAT(refusal("e4m3,fp16,fp8").what(), HasSubstr("e4m3 is named twice"));
  EXPECT_THAT(refusal("fp16,e4m3,mode=transcode").what(), HasSubstr("cache mode"));
  EXPECT_EQ(refusal("fp16,fp16").kind, ErrorKind::usage);
}

TEST(Planner, CountsWhatARunTakes) {
  const FakeEngine engine = engine_of(8192);
  const Plan plan = make_plan(niah({2048, 4096}, 3, 2), plain_chat(),
                              plan_arms(parse_profile_list("fp16,int8"), engine), engine);
  EXPECT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(plan.samples(), 12u);
  ASSERT_EQ(plan.cells.size(), 2U);
  size_t largest = 0;
  double seconds = 0;
  for (const PlannedCell& cell : plan.cells) {
    EXPECT_EQ(cell.haystacks, 3);
    EXPECT_EQ(cell.samples_per_haystack, 2);
    EXPECT_EQ(cell.shape.branches, 4U);
    EXPECT_LE(cell.shape.prefix_tokens + cell.shape.branch_tokens, size_t(cell.length));
    EXPECT_GT(cell.shape.prefix_tokens, size_t(cell.length) / 2);
    const size_t tokens = cell.shape.prefix_tokens + 4 * cell.shape.branch_tokens;
    seconds += 3 * 2 * 0.5 * double(tokens);
    largest = std::max(largest, 7 * tokens);
  }
  EXPECT_DOUBLE_EQ(plan.seconds(), seconds);
  EXPECT_EQ(plan.cache_bytes(), largest);
  EXPECT_EQ(plan.arms.front().cache_bytes_per_token, 7);
}

// ---- times from what was measured

SpeedRecord speed(const char* profile, int64_t length, double flops_per_second, double decode_seconds,
                  int64_t measured_ms = 1) {
  SpeedRecord record;
  record.profile = profile;
  record.length = length;
  record.prefix_flops = 1e6;
  record.prefill_seconds = 1e6 / flops_per_second;
  record.decode_seconds = decode_seconds;
  record.measured_ms = measured_ms;
  return record;
}

Plan planned(const char* profiles, const std::vector<SpeedRecord>& speeds,
             std::vector<int> lengths = {4096}) {
  const FakeEngine engine = engine_of(1 << 20);
  return make_plan(niah(std::move(lengths), 2, 3), plain_chat(),
                   plan_arms(parse_profile_list(profiles), engine), engine, speeds);
}

TEST(PlannedTimes, AreAGuessWithoutFigures) {
  EXPECT_EQ(planned("fp16", {}).measured_ms, std::nullopt);
  const PlannedCell cell = planned("fp16", {}).cells.front();
  EXPECT_DOUBLE_EQ(cell.per_arm[0].prefix_seconds, 0.5 * double(cell.shape.prefix_tokens));
}

TEST(PlannedTimes, ComeFromThePrefillAndTheDecodingMeasured) {
  const Plan plan = planned("fp16", {speed("fp16", 4096, 2e6, 0.25, 77)});
  EXPECT_EQ(plan.measured_ms, 77);
  const PlannedCell& cell = plan.cells.front();
  // The fake engine counts 1,000 FLOPs a token.
  EXPECT_DOUBLE_EQ(cell.per_arm[0].prefix_seconds, 1000 * double(cell.shape.prefix_tokens) / 2e6);
  const double work = 1000 * double(cell.shape.branches * cell.shape.branch_tokens) / 2e6;
  // A step reads the cache of prefix and branch; the measured one read 4,097 tokens'.
  const double step = 0.25 * double(cell.shape.prefix_tokens + cell.shape.branch_tokens) / 4097;
  ASSERT_GT(cell.shape.reply_tokens, 1u);
  // Of the branches' work a FLOP takes 1.2 times as long.
  const double branches = 1.2 * work + double(cell.shape.reply_tokens - 1) * step;
  EXPECT_NEAR(cell.per_arm[0].branch_seconds, branches, 1e-9 * branches);
  EXPECT_DOUBLE_EQ(plan.seconds(), 2 * cell.per_arm[0].seconds());
}

TEST(PlannedTimes, TakeTheNearestLengthInRatioOfTheSameProfile) {
  const auto rate = [](const char* profile, const std::vector<SpeedRecord>& speeds, int length) {
    const Estimate estimate = planned(profile, speeds, {length}).cells.front().per_arm[0];
    return estimate.prefix_flops / estimate.prefix_seconds;
  };
  const std::vector<SpeedRecord> speeds = {speed("fp16", 2048, 1e6, 1), speed("fp16", 32768, 3e6, 1),
                                           speed("int8", 131072, 7e6, 1)};
  EXPECT_NEAR(rate("fp16", speeds, 1024), 1e6, 1);
  EXPECT_NEAR(rate("fp16", speeds, 7000), 1e6, 1);
  EXPECT_NEAR(rate("fp16", speeds, 9000), 3e6, 1);  // nearer to 2,048 in tokens
  EXPECT_NEAR(rate("fp16", speeds, 200000), 3e6, 1);
  EXPECT_NEAR(rate("int8", speeds, 1024), 1e6, 1);  // of another profile: its own is 128 times as long
  EXPECT_NEAR(rate("int8", speeds, 20000), 7e6, 1);
  EXPECT_NEAR(rate("e4m3", speeds, 1024), 1e6, 1);  // of any profile
  EXPECT_NEAR(rate("e4m3", speeds, 200000), 7e6, 1);
  EXPECT_NEAR(rate("int8,mode=transcode", speeds, 20000), 7e6, 1);
}

TEST(PlannedTimes, PromptsTooShortToSayAnythingAreNotUsed) {
  EXPECT_EQ(planned("fp16", {speed("fp16", 2, 1e3, 1)}).measured_ms, std::nullopt);
  EXPECT_EQ(planned("fp16", {speed("fp16", 2, 1e3, 1), speed("int8", 2048, 1e6, 1, 5)}).measured_ms, 5);
  EXPECT_EQ(planned("fp16", {speed("fp16", 512, 1e6, 1, 7)}, {262144}).measured_ms, 7)
      << "far, but whole passes";
}

// Reads half as much a step under int8.
class HalvingEngine : public FakeEngine {
 public:
  HalvingEngine() : FakeEngine(engine_of(1 << 20)) {}
  Estimate estimate(const GroupShape& shape, const Profile& profile) const override {
    Estimate estimate = FakeEngine::estimate(shape, profile);
    if (profile.k.format == Format::int8) estimate.step_bytes /= 2;
    return estimate;
  }
};

TEST(PlannedTimes, AStepMeasuredUnderAnotherProfileCountsByWhatEachReads) {
  const HalvingEngine engine;
  // Work costs next to nothing: what is left are the steps.
  const auto steps_of = [&](const char* profile, const char* measured) {
    const std::vector<PlannedArm> arms = plan_arms(parse_profile_list(profile), engine);
    const Plan plan =
        make_plan(niah({4096}, 1, 3), plain_chat(), arms, engine, {speed(measured, 4096, 1e18, 0.25)});
    return plan.cells.front().per_arm.front().branch_seconds;
  };
  const double same = steps_of("fp16", "fp16");
  EXPECT_NEAR(steps_of("int8", "int8"), same, 1e-9);
  EXPECT_NEAR(steps_of("int8", "fp16"), same / 2, 1e-9);
  EXPECT_NEAR(steps_of("fp16", "int8"), same * 2, 1e-9);
}

TEST(PlannedTimes, AreAsOldAsTheOldestFigureTheyComeFrom) {
  const std::vector<SpeedRecord> speeds = {speed("fp16", 4096, 1e6, 1, 30), speed("int8", 4096, 1e6, 1, 20),
                                           speed("e5m2", 4096, 1e6, 1, 10)};
  EXPECT_EQ(planned("fp16,int8", speeds).measured_ms, 20);
  EXPECT_EQ(planned("fp16", speeds).measured_ms, 30);
}

TEST(PlannedTimes, TranscodingPrefillsOnceAGroup) {
  const std::vector<std::vector<SpeedRecord>> both = {{}, {speed("fp16", 4096, 2e6, 0.25)}};
  for (const std::vector<SpeedRecord>& speeds : both) {
    const PlannedCell once =
        planned("fp16,mode=transcode,int8,mode=transcode,e4m3,mode=transcode", speeds).cells.front();
    const PlannedCell each = planned("fp16,int8,e4m3", speeds).cells.front();
    EXPECT_EQ(once.per_arm[0].prefix_seconds, each.per_arm[0].prefix_seconds);
    for (const size_t arm : {size_t{1}, size_t{2}}) {
      EXPECT_GT(each.per_arm[arm].prefix_seconds, 0);
      EXPECT_EQ(once.per_arm[arm].prefix_seconds, 0);
      EXPECT_EQ(once.per_arm[arm].branch_seconds, each.per_arm[arm].branch_seconds);
    }
  }
}

TEST(PlannedTimes, ASharePassesFromNothingToAll) {
  const FakeEngine engine = engine_of(1 << 20);
  for (const char* profiles : {"fp16", "fp16,mode=transcode,int8,mode=transcode"}) {
    const Plan plan = planned(profiles, {speed("fp16", 4096, 2e6, 0.25)});
    const PlannedCell& cell = plan.cells.front();
    const size_t arm = plan.arms.size() - 1;
    const auto share = [&](uint64_t done) {
      return share_done(engine, cell.shape, plan.arms[arm].profile, cell.per_arm[arm], done);
    };
    const size_t all = cell.shape.prefix_tokens + cell.shape.branches * cell.shape.branch_tokens;
    EXPECT_EQ(share(0), 0);
    EXPECT_NEAR(share(all), 1, 1e-9);
    EXPECT_LE(share(2 * all), 1);
    double last = 0;
    for (size_t done = 0; done <= all; done += all / 17) {
      EXPECT_GE(share(done), last);
      last = share(done);
    }
    EXPECT_NEAR(share(cell.shape.prefix_tokens),
                cell.per_arm[arm].prefix_seconds / cell.per_arm[arm].seconds(), 1e-9);
  }
}

TEST(Planner, RefusesACellThatDoesNotFit) {
  const FakeEngine engine = engine_of(4096);
  const auto arms = plan_arms(parse_profile_list("fp16"), engine);
  const Error large = error_of([&] { make_plan(niah({2048, 8192}, 1, 1), plain_chat(), arms, engine); });
  EXPECT_EQ(large.kind, ErrorKind::usage);
  EXPECT_THAT(large.what(), HasSubstr("niah at 8k"));
  EXPECT_THAT(large.what(), HasSubstr("4096"));
  EXPECT_THAT(large.hint, HasSubstr("4k"));
  EXPECT_EQ(error_of([&] { make_plan(niah({16}, 1, 1), plain_chat(), arms, engine); }).kind,
            ErrorKind::usage);
  EXPECT_THAT(error_of([&] {
                make_plan(niah({2048, 2048}, 1, 1), plain_chat(), arms, engine);
              }).what(),
              HasSubstr("twice"));
}

TEST(Planner, OnlyThePhantomsContextCanGrow) {
  EngineInfo info;
  const auto hint = [&](const char* model, size_t tokens) {
    info.model = model;
    return room_hint(info, tokens, "shorten");
  };
  EXPECT_EQ(hint("phantom:kappa=80", 8 << 20), "the phantom's context=8388608 makes room");
  EXPECT_EQ(hint("phantom:kappa=80", (8 << 20) + 1), "shorten");
  EXPECT_EQ(hint("phantoms.gguf", 5000), "shorten");
  EXPECT_EQ(hint("./phantom:kappa", 5000), "shorten");
}

TEST(Planner, AsksForTheAnswerAndForItsLikelihood) {
  SampleGroup group;
  group.prefix = {1, 2};
  group.prefix_text = "prefix";
  group.samples.resize(2);
  group.samples[1].question = "q";
  group.samples[1].question_tokens = {3};
  group.samples[1].target = {4, 5};
  const PromptGroup prompt = prompt_of(group);
  EXPECT_EQ(prompt.prefix.tokens, group.prefix);
  EXPECT_EQ(prompt.prefix.ask, Ask::nothing);
  ASSERT_EQ(prompt.branches.size(), 4U);
  const Turn& answer = prompt.branches[answer_branch(1)].turns.at(0);
  const Turn& scored = prompt.branches[score_branch(1)].turns.at(0);
  EXPECT_EQ(answer.ask, Ask::generate);
  EXPECT_TRUE(answer.target.empty());
  EXPECT_EQ(scored.ask, Ask::score);
  EXPECT_EQ(scored.target, (Tokens{4, 5}));
  EXPECT_EQ(answer.tokens, scored.tokens);
  EXPECT_EQ(answer.text, "q");
}

TEST(Planner, PromptsAreInTheModelsTemplateUnlessPlainIsAsked) {
  EngineInfo info;
  EXPECT_EQ(chat_of(info, "auto").family, "plain");
  const ChatTemplate chat{.family = "chatml", .before_prompt = "a", .before_answer = "b"};
  info.chat = &chat;
  EXPECT_EQ(chat_of(info, "auto").family, "chatml");
  EXPECT_EQ(chat_of(info, "plain").family, "plain");
  EXPECT_EQ(error_of([&] { chat_of(info, "loud"); }).kind, ErrorKind::usage);
  const Error unknown(ErrorKind::bad_file, "of no family", "'--chat plain'");
  info.chat_error = &unknown;
  EXPECT_THAT(error_of([&] { chat_of(info, "auto"); }).hint, HasSubstr("--chat plain"));
  EXPECT_EQ(chat_of(info, "plain").family, "plain");
}

TEST(Planner, DecodingIsTheTasks) {
  const Task& task = task_named("niah");
  const auto json = nlohmann::json::parse(decoding_json(load_suite("niah")));
  EXPECT_EQ(json["niah"]["max_tokens"], task.max_answer_tokens);
  EXPECT_EQ(json["niah"]["stop_strings"], task.stop_strings);
}

}  // namespace
}  // namespace kveval
