// Profiles that take their static scales from the checkpoint.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cpu/cpu_engine.h"
#include "engine/model/rope.h"
#include "engine/random.h"
#include "tests/engine/reference_forward.h"

namespace kveval {
namespace {

Tokens random_tokens(Random& random, size_t count, int vocabulary) {
  Tokens tokens(count);
  for (Token& token : tokens) token = Token(random.below(uint64_t(vocabulary)));
  return tokens;
}

std::shared_ptr<Model> small_model(Random& random) {
  ModelConfig config;
  config.architecture = "llama";
  config.head_dim = 64;
  config.width = 48;
  config.vocabulary = 71;
  config.context = 512;
  config.ropes = {plain_rope(10000, config.head_dim)};
  LayerConfig layer;
  layer.kv_heads = 1 + int(random.below(2));
  layer.heads = 2 * layer.kv_heads;
  layer.ff = 40;
  config.layers.assign(3, layer);
  config.layers[1].window = 70;
  return std::make_shared<Model>(reference::random_model(config, random.next()));
}

void add_scales(Model& model, Random& random) {
  for (size_t layer = 0; layer < model.config.layers.size(); layer++) {
    model.cache_scales.k.push_back(float(0.002 + 0.01 * random.uniform()));
    model.cache_scales.v.push_back(float(0.002 + 0.01 * random.uniform()));
  }
}

struct Outcome {
  std::vector<float> logits;
  std::vector<double> errors;
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(Engine& engine, const PromptGroup& group, const Profile& profile) {
  Outcome outcome;
  Events events;
  events.on_logits = [&](size_t, size_t, size_t, std::span<const float> logits) {
    outcome.logits.insert(outcome.logits.end(), logits.begin(), logits.end());
  };
  events.on_diagnostics = [&](std::span<const CacheDiagnostic> all) {
    for (const CacheDiagnostic& one : all) outcome.errors.push_back(one.error_energy);
  };
  engine.run(group, {}, profile, events);
  return outcome;
}

TEST(CheckpointScales, GiveTheBitsOfStaticScales) {
  for (uint64_t seed = 1; seed <= 4; seed++) {
    Random random(seed);
    const std::shared_ptr<Model> model = small_model(random);
    add_scales(*model, random);
    const auto engine = make_cpu_engine(model);
    PromptGroup group;
    group.prefix.tokens = random_tokens(random, 130, 71);
    group.branches = {{{{random_tokens(random, 9, 71), {}, Ask::score, random_tokens(random, 5, 71)}}}};
    for (const std::string items : {"e4m3", "e5m2", "k=e4m3,v=fp16", "e4m3,skip-layers=1"}) {
      SCOPED_TRACE(items);
      Profile given = engine->resolve(parse_profile(items + ",scale=checkpoint"), {});
      EXPECT_FALSE(given.needs_resolve());
      EXPECT_EQ(given.k.static_scales, model->cache_scales.k);
      Profile measured = parse_profile(items + ",scale=tensor");
      measured.k.static_scales = model->cache_scales.k;
      if (measured.v.scale == ScaleAxis::tensor) measured.v.static_scales = model->cache_scales.v;
      for (const CacheMode mode : {CacheMode::as_you_go, CacheMode::transcode}) {
        given.mode = measured.mode = mode;
        EXPECT_EQ(outcome_of(*engine, group, given), outcome_of(*engine, group, measured));
      }
      EXPECT_NE(outcome_of(*engine, group, given), outcome_of(*engine, group, parse_profile(items)));
    }
  }
}

TEST(CheckpointScales, StandBesideMeasuredOnes) {
  Random random(21);
  const std::shared_ptr<Model> model = small_model(random);
  add_scales(*model, random);
  const auto engine = make_cpu_engine(model);
  const Tokens text = random_tokens(random, 40, 71);
  const Profile profile = parse_profile("e4m3,k-scale=checkpoint,v-scale=tensor");
  const Profile both = engine->resolve(profile, {&text, 1});
  EXPECT_EQ(both.k.static_scales, model->cache_scales.k);
  EXPECT_EQ(both.v.static_scales,
            engine->resolve(parse_profile("e4m3,scale=tensor"), {&text, 1}).v.static_scales);
  EXPECT_THROW(engine->resolve(profile, {}), Error);
}

TEST(CheckpointScales, AModelWithoutThemSaysSo) {
  Random random(22);
  const auto engine = make_cpu_engine(small_model(random));
  for (const std::string text : {"e4m3,scale=checkpoint", "k=fp16,v=e5m2,scale=checkpoint"}) {
    try {
      engine->check(parse_profile(text));
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::usage);
      EXPECT_EQ(error.what(),
                "profile '" + text + "' takes its scales from the checkpoint, and random has none");
      EXPECT_NE(error.hint.find("scale 1.0"), std::string::npos);
    }
    EXPECT_THROW(engine->resolve(parse_profile(text), {}), Error);
  }
}

}  // namespace
}  // namespace kveval
