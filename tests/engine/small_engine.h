// Small random models, a group with every kind of question, and outcomes compared bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "engine/model/rope.h"
#include "engine/random.h"
#include "tests/engine/reference_forward.h"

namespace kveval {

// With whatever an architecture may add to a plain layer, drawn by the seed.
inline Model random_model(const ModelConfig& config, uint64_t seed) {
  return reference::random_model(
      config, seed, {.biases = seed % 2 == 0, .head_norms = seed % 3 != 0, .post_norms = seed % 5 < 3});
}

inline Tokens random_tokens(Random& random, size_t count, int vocabulary) {
  Tokens tokens(count);
  for (Token& token : tokens) token = Token(random.below(uint64_t(vocabulary)));
  return tokens;
}

inline ModelConfig small_config(Random& random) {
  constexpr int kHeadDims[] = {64, 128, 256};
  ModelConfig config;
  config.architecture = "llama";
  config.head_dim = kHeadDims[random.below(3)];
  config.width = 48 + 16 * int(random.below(4));
  config.vocabulary = 61 + int(random.below(60));
  config.context = 4096;
  config.rope_style = random.below(2) ? RopeStyle::halves : RopeStyle::interleaved;
  config.ropes = {plain_rope(10000, config.head_dim),
                  yarn_rope(1e6, config.head_dim, {.factor = 4, .original_context = 64})};
  config.activation = random.below(2) ? Activation::silu : Activation::gelu_tanh;
  if (random.below(2)) config.embedding_scale = 3;
  if (random.below(2)) config.score_scale = 0.05;
  for (uint64_t l = 0, layers = 2 + random.below(2); l < layers; l++) {
    LayerConfig layer;
    layer.kv_heads = 1 + int(random.below(2));
    layer.heads = layer.kv_heads * (1 + int(random.below(9)));
    layer.window = random.below(2) ? 0 : 1 + int(random.below(150));
    layer.rope = int(random.below(3)) - 1;  // none, plain or scaled
    layer.ff = 16 + int(random.below(40));
    config.layers.push_back(layer);
  }
  return config;
}

// Everything a run reports that must not depend on how it was computed.
struct Outcome {
  std::map<std::pair<size_t, size_t>, Reply> replies;
  std::map<std::tuple<size_t, size_t, size_t>, std::vector<float>> logits;
  std::vector<CacheDiagnostic> diagnostics;
};

inline Outcome run(Engine& engine, const PromptGroup& group, const Profile& profile, int max_tokens = 6) {
  Outcome outcome;
  Events events;
  events.on_reply = [&](size_t branch, size_t turn, Reply&& reply) {
    EXPECT_TRUE(outcome.replies.emplace(std::pair(branch, turn), std::move(reply)).second) << "two replies";
  };
  events.on_logits = [&](size_t branch, size_t turn, size_t position, std::span<const float> logits) {
    outcome.logits[{branch, turn, position}].assign(logits.begin(), logits.end());
  };
  events.on_diagnostics = [&](std::span<const CacheDiagnostic> all) {
    outcome.diagnostics.assign(all.begin(), all.end());
  };
  Decoding decoding;
  decoding.max_tokens = max_tokens;
  engine.run(group, decoding, profile, events);
  return outcome;
}

inline bool same_bits(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }
inline bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

inline void expect_same_stats(const TokenStats& a, const TokenStats& b) {
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.top, b.top);
  EXPECT_TRUE(same_bits(a.logprob, b.logprob)) << a.logprob << " " << b.logprob;
  EXPECT_TRUE(same_bits(a.top_logprob, b.top_logprob));
}

inline void expect_same(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.replies.size(), b.replies.size());
  for (const auto& [key, reply] : a.replies) {
    const Reply& other = b.replies.at(key);
    EXPECT_EQ(reply.tokens, other.tokens);
    EXPECT_EQ(reply.text, other.text);
    EXPECT_EQ(reply.stop, other.stop);
    ASSERT_EQ(reply.stats.size(), other.stats.size());
    for (size_t i = 0; i < reply.stats.size(); i++) expect_same_stats(reply.stats[i], other.stats[i]);
  }
  ASSERT_EQ(a.logits.size(), b.logits.size());
  for (const auto& [key, logits] : a.logits) {
    const auto& other = b.logits.at(key);
    ASSERT_EQ(logits.size(), other.size());
    for (size_t i = 0; i < logits.size(); i++) ASSERT_TRUE(same_bits(logits[i], other[i])) << "logit " << i;
  }
  ASSERT_EQ(a.diagnostics.size(), b.diagnostics.size());
  for (size_t i = 0; i < a.diagnostics.size(); i++) {
    const CacheDiagnostic &x = a.diagnostics[i], &y = b.diagnostics[i];
    EXPECT_EQ(x.elements, y.elements);
    EXPECT_EQ(x.clipped, y.clipped);
    EXPECT_EQ(x.flushed, y.flushed);
    EXPECT_TRUE(same_bits(x.absolute_max, y.absolute_max));
    EXPECT_TRUE(same_bits(x.error_energy, y.error_energy)) << x.error_energy - y.error_energy;
    EXPECT_TRUE(same_bits(x.energy, y.energy));
  }
}

// Two questions, a conversation of three turns and a bystander that asks nothing.
inline PromptGroup mixed_group(Random& random, const ModelConfig& config, size_t prefix) {
  const auto turn = [&](size_t tokens, Ask ask, size_t target = 0) {
    return Turn{random_tokens(random, tokens, config.vocabulary),
                {},
                ask,
                random_tokens(random, target, config.vocabulary)};
  };
  PromptGroup group;
  group.prefix = turn(prefix, Ask::nothing);
  group.branches.push_back({{turn(3 + random.below(40), Ask::generate)}});
  group.branches.push_back({{turn(1 + random.below(90), Ask::score, 1 + random.below(20))}});
  group.branches.push_back(
      {{turn(1, Ask::generate), turn(5, Ask::score, 3), turn(2, Ask::nothing), turn(1, Ask::generate)}});
  group.branches.push_back({{turn(7, Ask::nothing)}});
  return group;
}

}  // namespace kveval
