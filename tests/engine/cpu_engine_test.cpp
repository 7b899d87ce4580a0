// The CPU engine against its contracts (design §5.1-5.4): only the cache differs, one absolute order, same
// bits whatever the chunk, page, thread count, SIMD level, fork or company; and against float64 logits.
#include "engine/cpu/cpu_engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <utility>

#include "engine/cpu/kernels.h"
#include "engine/random.h"
#include "tests/engine/reference_forward.h"
#include "tests/engine/small_engine.h"

namespace kveval {
namespace {

Profile resolved(Engine& engine, const char* text, const Tokens& calibration) {
  return engine.resolve(parse_profile(text), {&calibration, 1});
}

TEST(CpuEngine, LogitsFollowTheMathematics) {
  for (uint64_t seed = 1; seed <= 12; seed++) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const ModelConfig config = small_config(random);
    const auto model = std::make_shared<Model>(random_model(config, seed));
    const auto engine = make_cpu_engine(model);
    PromptGroup group;
    group.prefix.tokens = random_tokens(random, 100 + random.below(150), config.vocabulary);
    const Tokens question = random_tokens(random, 5, config.vocabulary);
    const Tokens target = random_tokens(random, 8, config.vocabulary);
    group.branches.push_back({{{question, {}, Ask::score, target}}});
    const Outcome outcome = run(*engine, group, parse_profile("f32"));

    Tokens all = group.prefix.tokens;
    all.insert(all.end(), question.begin(), question.end());
    const size_t first = all.size() - 1;
    all.insert(all.end(), target.begin(), target.end());
    std::vector<size_t> positions(target.size());
    for (size_t i = 0; i < target.size(); i++) positions[i] = first + i;
    const std::vector<reference::Vector> rows = reference::logits(*model, all, positions);
    for (size_t i = 0; i < target.size(); i++) {
      const reference::Vector& expected = rows[i];
      const auto& got = outcome.logits.at({0, 0, i});
      double largest = 0;
      for (const double x : expected) largest = std::max(largest, std::fabs(x));
      for (size_t v = 0; v < got.size(); v++) ASSERT_NEAR(got[v], expected[v], 2e-5 * std::max(1.0, largest));
      double total = 0;
      for (const double x : expected) total += std::exp(x - largest);
      const double logprob = expected[size_t(target[i])] - largest - std::log(total);
      EXPECT_NEAR(outcome.replies.at({0, 0}).stats[i].logprob, logprob, 1e-4 * std::max(1.0, largest));
    }
  }
}

// Float32 (null: the default), and bfloat16 where this CPU has it: what holds for the one holds for the
// other.
// Every third case under sanitizers, which look at reads, writes and races and take twenty times as long; the
// others are compared in Release.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeedStep = 3;
#else
constexpr uint64_t kSeedStep = 1;
#endif

std::vector<const cpu::Kernels*> both_arithmetics() {
  std::vector<const cpu::Kernels*> all = {nullptr};
  if (const cpu::Kernels* kernels = cpu::kernels_named("avx512", Compute::bfloat16)) all.push_back(kernels);
  return all;
}

void expect_same_bits_however_the_work_is_cut(const cpu::Kernels* kernels) {
  constexpr const char* kProfiles[] = {"f32",
                                       "fp16",
                                       "bf16",
                                       "e4m3",
                                       "e5m2",
                                       "int8",
                                       "int8-tensor",
                                       "k=e4m3,v=int8",
                                       "e5m2,skip-layers=0",
                                       "int8,mode=transcode"};
  for (uint64_t seed = 1; seed <= std::size(kProfiles); seed += kSeedStep) {
    SCOPED_TRACE(kProfiles[seed - 1]);
    Random random(seed * 77);
    const ModelConfig config = small_config(random);
    const auto model = std::make_shared<Model>(random_model(config, seed));
    const PromptGroup group = mixed_group(random, config, 200 + random.below(1100));
    const Tokens calibration = random_tokens(random, 70, config.vocabulary);

    const auto plain = make_cpu_engine(model, {.threads = 1, .kernels = kernels});
    const Profile profile = resolved(*plain, kProfiles[seed - 1], calibration);
    const Outcome expected = run(*plain, group, profile);
    CpuEngineOptions variants[] = {
        {.threads = 2},
        {.threads = 1, .chunk_tokens = 1},
        {.threads = 2, .chunk_tokens = 7, .page_tokens = 64},
        {.threads = 2, .chunk_tokens = 64, .page_tokens = 256},
        {.threads = 1, .page_tokens = 64, .max_branches = 1},
        {.threads = 2, .chunk_tokens = 33, .page_tokens = 128, .max_branches = 2},
    };
    for (CpuEngineOptions& options : variants) {
      SCOPED_TRACE(options.chunk_tokens);
      options.kernels = kernels;
      const auto engine = make_cpu_engine(model, options);
      EXPECT_EQ(resolved(*engine, kProfiles[seed - 1], calibration), profile);
      expect_same(run(*engine, group, profile), expected);
    }
  }
}

TEST(CpuEngine, SameBitsHoweverTheWorkIsCut) {
  for (const cpu::Kernels* kernels : both_arithmetics()) expect_same_bits_however_the_work_is_cut(kernels);
}

TEST(CpuEngine, SameBitsAtEverySimdLevel) {
  Random random(5);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 5));
  const PromptGroup group = mixed_group(random, config, 150);
  const auto scalar = make_cpu_engine(model, {.kernels = cpu::kernels_named("scalar")});
  int compared = 0;
  for (const char* level : {"avx2", "avx512"}) {
    const cpu::Kernels* kernels = cpu::kernels_named(level);
    if (!kernels) continue;
    const auto engine = make_cpu_engine(model, {.kernels = kernels});
    for (const char* profile : {"f32", "fp16", "bf16", "e4m3", "e5m2", "int8"}) {
      SCOPED_TRACE(std::string(level) + " " + profile);
      expect_same(run(*engine, group, parse_profile(profile)), run(*scalar, group, parse_profile(profile)));
    }
    compared++;
  }
  if (compared == 0) GTEST_SKIP() << "this CPU has neither AVX2 nor AVX-512";
}

TEST(CpuEngine, BfloatArithmeticIsItsScalarDefinition) {
  const cpu::Kernels* const kernels = cpu::kernels_named("avx512", Compute::bfloat16);
  if (kernels == nullptr) GTEST_SKIP() << "this CPU lacks AVX512_BF16";
  Random random(6);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 6));
  const PromptGroup group = mixed_group(random, config, 150);
  const auto engine = make_cpu_engine(model, {.kernels = kernels});
  EXPECT_EQ(engine->describe().compute, "bfloat16");
  const auto scalar = make_cpu_engine(model, {.kernels = cpu::kernels_named("scalar", Compute::bfloat16)});
  const auto float32 = make_cpu_engine(model);
  EXPECT_EQ(float32->describe().compute, "float32");
  for (const char* profile : {"f32", "fp16", "bf16", "e4m3", "e5m2", "int8"}) {
    SCOPED_TRACE(profile);
    const Outcome outcome = run(*engine, group, parse_profile(profile));
    expect_same(outcome, run(*scalar, group, parse_profile(profile)));
    EXPECT_NE(outcome.logits, run(*float32, group, parse_profile(profile)).logits);
  }
}

// Layers that are skipped, and the one prefill of a transcoded run, are what the arithmetic's own cache is.
TEST(CpuEngine, SixteenBitsAreThoseOfTheArithmetic) {
  for (const cpu::Kernels* kernels :
       {cpu::kernels_named("scalar"), cpu::kernels_named("scalar", Compute::bfloat16)}) {
    Random random(11);
    const ModelConfig config = small_config(random);
    const auto model = std::make_shared<Model>(random_model(config, 11));
    const PromptGroup group = mixed_group(random, config, 90);
    const auto engine = make_cpu_engine(model, {.kernels = kernels});
    const auto under = [&](const std::string& profile) {
      return run(*engine, group, parse_profile(profile));
    };
    const std::string wide = kernels->compute == Compute::bfloat16 ? "bf16" : "fp16";
    SCOPED_TRACE(wide);
    const Outcome expected = under(wide);
    expect_same(under("e5m2,skip-layers=0-" + std::to_string(config.layers.size() - 1)), expected);
    Outcome transcoded = under(wide + ",mode=transcode");
    transcoded.diagnostics = expected.diagnostics;  // those of the second encoding, which loses nothing
    expect_same(transcoded, expected);
    EXPECT_NE(under(wide == "bf16" ? "fp16" : "bf16").logits, expected.logits);
  }
}

// The same tokens, cut into prefix and branch elsewhere: what a query sees depends on positions alone.
void expect_forks_as_straight_runs(const cpu::Kernels* kernels) {
  for (uint64_t seed = 1; seed <= 8; seed += kSeedStep) {
    SCOPED_TRACE(seed);
    Random random(seed * 31);
    const ModelConfig config = small_config(random);
    const auto model = std::make_shared<Model>(random_model(config, seed));
    const auto engine = make_cpu_engine(model, {.page_tokens = 64, .kernels = kernels});
    const Tokens all = random_tokens(random, 1200, config.vocabulary);
    const Tokens target = random_tokens(random, 5, config.vocabulary);
    const auto cut_at = [&](size_t cut) {
      PromptGroup group;
      group.prefix.tokens.assign(all.begin(), all.begin() + std::ptrdiff_t(cut));
      Turn turn{{all.begin() + std::ptrdiff_t(cut), all.end()}, {}, Ask::score, target};
      group.branches.push_back({{turn}});
      group.branches.push_back({{{random_tokens(random, 70, config.vocabulary), {}, Ask::generate, {}}}});
      return run(*engine, group, parse_profile("e4m3"));
    };
    const Outcome straight = cut_at(1199);
    for (const size_t cut :
         {size_t(0), size_t(1), size_t(64), size_t(1024), 1 + size_t(random.below(1198))}) {
      const Outcome forked = cut_at(cut);
      for (size_t i = 0; i < target.size(); i++) {
        expect_same_stats(forked.replies.at({0, 0}).stats[i], straight.replies.at({0, 0}).stats[i]);
      }
    }
  }
}

TEST(CpuEngine, AForkGivesTheBitsOfAStraightRun) {
  for (const cpu::Kernels* kernels : both_arithmetics()) expect_forks_as_straight_runs(kernels);
}

TEST(CpuEngine, AGeneratedAnswerScoresAsItWasGenerated) {
  Random random(9);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 9));
  const auto engine = make_cpu_engine(model);
  PromptGroup group;
  group.prefix.tokens = random_tokens(random, 90, config.vocabulary);
  const Tokens question = random_tokens(random, 4, config.vocabulary);
  group.branches.push_back({{{question, {}, Ask::generate, {}}}});
  const Reply generated = run(*engine, group, parse_profile("int8")).replies.at({0, 0});
  ASSERT_EQ(generated.tokens.size(), 6u);
  EXPECT_EQ(generated.stop, Stop::length);
  group.branches[0].turns[0].ask = Ask::score;
  group.branches[0].turns[0].target = generated.tokens;
  const Reply scored = run(*engine, group, parse_profile("int8")).replies.at({0, 0});
  for (size_t i = 0; i < scored.stats.size(); i++) {
    expect_same_stats(scored.stats[i], generated.stats[i]);
    EXPECT_EQ(scored.stats[i].top, generated.tokens[i]);
  }
}

TEST(CpuEngine, AStopTokenEndsAnAnswerAsEosDoes) {
  Random random(10);
  const ModelConfig config = small_config(random);
  const auto engine = make_cpu_engine(std::make_shared<Model>(random_model(config, 10)));
  PromptGroup group;
  group.prefix.tokens = random_tokens(random, 30, config.vocabulary);
  group.branches.push_back({{{random_tokens(random, 4, config.vocabulary), {}, Ask::generate, {}}}});
  const Reply all = run(*engine, group, parse_profile("fp16")).replies.at({0, 0});
  const Token stop = all.tokens.back();
  const auto first = std::find(all.tokens.begin(), all.tokens.end(), stop);

  Decoding decoding;
  decoding.max_tokens = int(all.tokens.size());
  decoding.stop_tokens = {config.vocabulary, stop};
  Reply stopped;
  Events events;
  size_t told = 0;
  events.on_token = [&](size_t, size_t, const Reply& reply) { EXPECT_EQ(reply.tokens.size(), ++told); };
  events.on_reply = [&](size_t, size_t, Reply&& reply) { stopped = std::move(reply); };
  engine->run(group, decoding, parse_profile("fp16"), events);
  EXPECT_EQ(told, stopped.tokens.size());
  EXPECT_EQ(stopped.stop, Stop::eos);
  EXPECT_EQ(stopped.tokens, Tokens(all.tokens.begin(), first));
  EXPECT_EQ(stopped.stats.size(), stopped.tokens.size() + 1);
}

// A conversation sees its own replies: the second turn scores as if the first had been part of the prompt.
TEST(CpuEngine, ATurnSeesEarlierReplies) {
  Random random(11);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 11));
  const auto engine = make_cpu_engine(model);
  PromptGroup group;
  group.prefix.tokens = random_tokens(random, 40, config.vocabulary);
  const Tokens first = random_tokens(random, 3, config.vocabulary),
               second = random_tokens(random, 2, config.vocabulary);
  const Tokens target = random_tokens(random, 4, config.vocabulary);
  group.branches.push_back({{{first, {}, Ask::generate, {}}, {second, {}, Ask::score, target}}});
  const Outcome conversation = run(*engine, group, parse_profile("fp16"));
  Tokens flat = first;
  const Tokens& reply = conversation.replies.at({0, 0}).tokens;
  flat.insert(flat.end(), reply.begin(), reply.end());
  flat.insert(flat.end(), second.begin(), second.end());
  group.branches = {{{{flat, {}, Ask::score, target}}}};
  const Outcome one_turn = run(*engine, group, parse_profile("fp16"));
  for (size_t i = 0; i < target.size(); i++) {
    expect_same_stats(conversation.replies.at({0, 1}).stats[i], one_turn.replies.at({0, 0}).stats[i]);
  }
}

TEST(CpuEngine, TranscodingFp16ToItselfChangesNothing) {
  Random random(13);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 13));
  const auto engine = make_cpu_engine(model);
  const PromptGroup group = mixed_group(random, config, 300);
  const Outcome as_you_go = run(*engine, group, parse_profile("fp16"));
  Outcome transcoded = run(*engine, group, parse_profile("fp16,mode=transcode"));
  // The values are fp16 already, so the round trip loses nothing; only the diagnostics of the prefix differ.
  transcoded.diagnostics = as_you_go.diagnostics;
  expect_same(transcoded, as_you_go);
}

// A window's pages hold more of the past the larger they are; what of it is encoded again must not depend on
// that.
TEST(CpuEngine, TranscodingDoesNotSeeThePageSize) {
  Random random(14);
  ModelConfig config = small_config(random);
  config.layers[0].window = 16;
  const auto model = std::make_shared<Model>(random_model(config, 14));
  const PromptGroup group = mixed_group(random, config, 300);
  const Profile profile = parse_profile("e4m3,mode=transcode");
  const Outcome expected = run(*make_cpu_engine(model, {.page_tokens = 64}), group, profile);
  for (const int page : {128, 256}) {
    expect_same(run(*make_cpu_engine(model, {.chunk_tokens = 33, .page_tokens = page}), group, profile),
                expected);
  }
}

TEST(CpuEngine, StaticScalesAreTheLargestValueOverTheLargestCode) {
  Random random(15);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 15));
  const auto engine = make_cpu_engine(model);
  const Tokens text = random_tokens(random, 60, config.vocabulary);
  const Profile profile = resolved(*engine, "int8-tensor", text);
  PromptGroup group;
  group.prefix.tokens = text;
  const Outcome observed = run(*engine, group, parse_profile("f32"));
  for (size_t l = 0; l < config.layers.size(); l++) {
    float k = 0, v = 0;
    for (const CacheDiagnostic& d : observed.diagnostics) {
      if (d.layer == int(l)) (d.keys ? k : v) = std::max(d.keys ? k : v, d.absolute_max);
    }
    EXPECT_EQ(profile.k.static_scales[l], k / 127.0f);
    EXPECT_EQ(profile.v.static_scales[l], v / 127.0f);
  }
  EXPECT_FALSE(profile.needs_resolve());
  EXPECT_EQ(run(*engine, group, profile).diagnostics[0].clipped, 0u) << "the text it was measured on fits";
}

TEST(CpuEngine, CancelledBetweenChunks) {
  Random random(17);
  const ModelConfig config = small_config(random);
  const auto engine =
      make_cpu_engine(std::make_shared<Model>(random_model(config, 17)), {.chunk_tokens = 16});
  PromptGroup group = mixed_group(random, config, 100);
  Events events;
  uint64_t last = 0;
  events.progress = [&](uint64_t done) { return (last = done) < 48; };
  try {
    engine->run(group, {}, parse_profile("fp16"), events);
    FAIL() << "ran on";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::cancelled);
    EXPECT_EQ(last, 48u);
  }
}

TEST(CpuEngine, WhatDoesNotFitIsAnErrorReplyNeverAnAnswer) {
  Random random(19);
  ModelConfig config = small_config(random);
  config.context = 64;
  const auto engine = make_cpu_engine(std::make_shared<Model>(random_model(config, 19)));
  PromptGroup group;
  group.prefix.tokens = random_tokens(random, 50, config.vocabulary);
  const auto question = [&](size_t n) {
    return Turn{random_tokens(random, n, config.vocabulary), {}, Ask::generate, {}};
  };
  group.branches = {{{question(4)}}, {{question(20), question(1)}}, {{question(13)}}};
  const Outcome outcome = run(*engine, group, parse_profile("fp16"));
  EXPECT_EQ(outcome.replies.at({0, 0}).stop, Stop::length);
  for (const auto& [branch, turn] : {std::pair<size_t, size_t>{1, 0}, {1, 1}, {2, 0}}) {
    const Reply& reply = outcome.replies.at({branch, turn});
    EXPECT_EQ(reply.stop, Stop::error);
    ASSERT_TRUE(reply.error);
    EXPECT_NE(std::string(reply.error->what()).find("64"), std::string::npos) << reply.error->what();
    EXPECT_TRUE(reply.tokens.empty());
  }
}

TEST(CpuEngine, AModelThatMakesNanHasNoAnswers) {
  Random random(23);
  const ModelConfig config = small_config(random);
  Model broken = random_model(config, 23);
  reference::Matrix keys = reference::matrix_of(broken.weights.layers[1].k);
  keys.values[5] = NAN;
  broken.weights.layers[1].k = reference::tensor_of(keys);
  const auto engine = make_cpu_engine(std::make_shared<Model>(broken));
  const PromptGroup group = mixed_group(random, config, 40);
  for (const char* profile : {"f32", "fp16", "e4m3", "int8"}) {
    try {
      run(*engine, group, parse_profile(profile));
      FAIL() << profile << " ran";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::run);
      EXPECT_NE(std::string(error.what()).find("layer 1"), std::string::npos) << error.what();
    }
  }
}

// Values beyond 65504 are infinite in fp16 and fine in bf16: the error names the format, not the checkpoint.
TEST(CpuEngine, AFormatThatOverflowsIsNamed) {
  Random random(25);
  const ModelConfig config = small_config(random);
  Model loud = random_model(config, 25);
  reference::Matrix values = reference::matrix_of(loud.weights.layers[0].v);
  for (float& weight : values.values) weight *= 1e6f;
  loud.weights.layers[0].v = reference::tensor_of(values);
  const auto engine = make_cpu_engine(std::make_shared<Model>(loud));
  const PromptGroup group = mixed_group(random, config, 40);
  EXPECT_NO_THROW(run(*engine, group, parse_profile("bf16")));
  try {
    run(*engine, group, parse_profile("fp16"));
    FAIL() << "ran";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("'fp16' overflows: values of layer 0"), std::string::npos)
        << error.what();
  }
}

TEST(CpuEngine, RefusesWhatCannotBeRun) {
  Random random(21);
  const ModelConfig config = small_config(random);
  const auto model = std::make_shared<Model>(random_model(config, 21));
  const auto engine = make_cpu_engine(model);
  const auto refused = [&](const PromptGroup& group, const char* profile) {
    try {
      engine->run(group, {}, parse_profile(profile), {});
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string("ran");
  };
  PromptGroup group;
  group.branches = {{{{{}, {}, Ask::generate, {}}}}};
  EXPECT_NE(refused(group, "fp16").find("no tokens"), std::string::npos);
  group.prefix.tokens = {1, 2, config.vocabulary};
  EXPECT_NE(refused(group, "fp16").find("vocabulary"), std::string::npos);
  group.prefix.tokens = {1, 2};
  group.branches = {{{{{1}, {}, Ask::score, {}}}}};
  EXPECT_NE(refused(group, "fp16").find("empty target"), std::string::npos);
  group.branches.clear();
  EXPECT_NE(refused(group, "fp16,skip-layers=7").find("layer 7"), std::string::npos);
  EXPECT_NE(refused(group, "int8-tensor"), "ran");
  EXPECT_THROW(run(*engine, group, parse_profile("fp16"), 0), Error);
  EXPECT_THROW(make_cpu_engine(model, {.page_tokens = 96}), Error);
  EXPECT_THROW(make_cpu_engine(model, {.chunk_tokens = 0}), Error);
  EXPECT_THROW(make_cpu_engine(model, {.threads = -1}), Error);
}

}  // namespace
}  // namespace kveval
