// A GGUF file that says what kveval does not understand is refused, and the message names the key or tensor.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/engine/small_gguf.h"

namespace kveval {
namespace {

using GgufRefusals = SmallGgufTest;
using testing::HasSubstr;

struct Fault {
  std::function<void(SmallGguf&)> make;
  const char* says;
};

TEST_F(GgufRefusals, NameConfigurations) {
  const Fault faults[] = {
      {[](SmallGguf& f) { f.set("general.architecture", "mamba"); }, "the architecture 'mamba'"},
      {[](SmallGguf& f) { f.drop("general.architecture"); }, "'general.architecture' is missing"},
      {[](SmallGguf& f) { f.set("general.quantization_version", 1u); }, "quantization_version"},
      {[](SmallGguf& f) { f.set("expert_count", 8u); }, "'llama.expert_count' is 8"},
      {[](SmallGguf& f) { f.set("expert_used_count", 2u); }, "'llama.expert_used_count'"},
      {[](SmallGguf& f) { f.set("final_logit_softcapping", 30.f); }, "'llama.final_logit_softcapping' is 30"},
      {[](SmallGguf& f) { f.set("attn_logit_softcapping", 50.f); }, "'llama.attn_logit_softcapping'"},
      {[](SmallGguf& f) { f.set("attention.causal", true); }, "'llama.attention.causal' is unknown"},
      {[](SmallGguf& f) { f.set("logit_scale", 2.f); }, "'llama.logit_scale' is unknown"},
      {[](SmallGguf& f) { f.set("attention.sliding_window_pattern", 2u); },
       "sliding_window_pattern' is unknown"},
      {[](SmallGguf& f) { f.keys["llama"] = value_of(1u); }, "key 'llama' is unknown"},
      {[](SmallGguf& f) { f.drop("block_count"); }, "'llama.block_count' is missing"},
      {[](SmallGguf& f) { f.set("block_count", 0u); }, "'llama.block_count' is 0"},
      {[](SmallGguf& f) { f.set("block_count", 1025u); }, "outside 0 to 1024"},
      {[](SmallGguf& f) { f.set("block_count", "two"); }, "'llama.block_count' is a text"},
      {[](SmallGguf& f) { f.set("embedding_length", 1u << 18); }, "'llama.embedding_length'"},
      {[](SmallGguf& f) { f.set("embedding_length", 32u).set("attention.key_length", 64u); },
       "'llama.embedding_length' is 32, less than one head of 64"},
      {[](SmallGguf& f) { f.drop("context_length"); }, "'llama.context_length' is missing"},
      {[](SmallGguf& f) { f.set("context_length", (1u << 24) + 1); }, "'llama.context_length'"},
      {[](SmallGguf& f) { f.drop("attention.head_count"); }, "'llama.attention.head_count' is missing"},
      {[](SmallGguf& f) { f.set("attention.head_count", 2048u); }, "'llama.attention.head_count'"},
      {[](SmallGguf& f) {
         f.set("attention.head_count", std::vector<uint32_t>{2, 0});
       },
       "is 0 for a layer"},
      {[](SmallGguf& f) { f.set("attention.head_count", std::vector<uint32_t>{2}); },
       "1 values for 2 layers"},
      {[](SmallGguf& f) { f.set("attention.head_count_kv", 3u); }, "'llama.attention.head_count_kv' is 3"},
      {[](SmallGguf& f) { f.set("attention.head_count", 3u).set("attention.head_count_kv", 3u); },
       "'llama.attention.key_length' is missing"},
      {[](SmallGguf& f) { f.set("feed_forward_length", 0u); }, "'llama.feed_forward_length' is 0"},
      {[](SmallGguf& f) { f.set("attention.key_length", 80u); }, "heads of size 80"},
      {[](SmallGguf& f) { f.set("attention.key_length", 0u); }, "heads of size 0"},
      {[](SmallGguf& f) { f.set("attention.value_length", 128u); }, "'llama.attention.value_length' is 128"},
      {[](SmallGguf& f) { f.set("rope.dimension_count", 32u); }, "'llama.rope.dimension_count' is 32"},
      {[](SmallGguf& f) { f.drop("attention.layer_norm_rms_epsilon"); },
       "layer_norm_rms_epsilon' is missing"},
      {[](SmallGguf& f) { f.set("attention.layer_norm_rms_epsilon", 0.f); }, "layer_norm_rms_epsilon' is 0"},
      {[](SmallGguf& f) { f.set("attention.layer_norm_rms_epsilon", std::nanf("")); }, "is not finite"},
      {[](SmallGguf& f) { f.set("attention.layer_norm_rms_epsilon", 2.f); }, "layer_norm_rms_epsilon' is 2"},
      {[](SmallGguf& f) { f.set("vocab_size", 260u); }, "'llama.vocab_size' is 260"}};
  for (const auto& [make, says] : faults) {
    SmallGguf file = small_gguf("llama");
    make(file);
    EXPECT_THAT(refusal(file), HasSubstr(says));
  }
}

TEST_F(GgufRefusals, NameRope) {
  const auto yarn = [](SmallGguf& f) {
    f.set("rope.scaling.type", "yarn").set("rope.scaling.factor", 4.f);
    f.set("rope.scaling.original_context_length", 128u);
  };
  const Fault faults[] = {
      {[](SmallGguf& f) { f.set("rope.freq_base", -1.f); }, "'llama.rope.freq_base' is -1"},
      {[](SmallGguf& f) { f.set("rope.freq_base", 1.f); }, "'llama.rope.freq_base' is 1"},
      {[](SmallGguf& f) { f.set("rope.freq_base", INFINITY); }, "'llama.rope.freq_base' is not finite"},
      {[](SmallGguf& f) { f.set("rope.freq_base_swa", 10000.f); }, "'llama.rope.freq_base_swa' is unknown"},
      {[](SmallGguf& f) { f.set("rope.scaling.type", "longrope"); },
       "'llama.rope.scaling.type' is 'longrope'"},
      {[](SmallGguf& f) { f.set("rope.scaling.factor", 0.f); }, "'llama.rope.scaling.factor' is 0"},
      {[](SmallGguf& f) { f.set("rope.scaling.attn_factor", 2.f); }, "'llama.rope.scaling.attn_factor' is 2"},
      {[](SmallGguf& f) { f.set("rope.scaling.yarn_beta_fast", 2.f); }, "yarn_beta_fast' is unknown"},
      {[](SmallGguf& f) { f.set("rope.scaling.alpha", 2.f); }, "'llama.rope.scaling.alpha' is unknown"},
      {[](SmallGguf& f) {
         f.set("rope.dimension_sections", std::vector<int32_t>{1, 2});
       },
       "dimension_sections"},
      {[&](SmallGguf& f) { yarn(f), f.drop("rope.scaling.factor"); },
       "'llama.rope.scaling.factor' is missing"},
      {[&](SmallGguf& f) { yarn(f), f.set("rope.scaling.factor", 0.5f); },
       "'llama.rope.scaling.factor' is 0.5"},
      {[&](SmallGguf& f) { yarn(f), f.drop("rope.scaling.original_context_length"); },
       "original_context_length' is missing"},
      {[&](SmallGguf& f) { yarn(f), f.set("rope.scaling.yarn_beta_slow", 64.f); },
       "not above yarn_beta_slow"},
      {[&](SmallGguf& f) { yarn(f), f.set("rope.scaling.yarn_attn_factor", 1.f); }, "yarn_attn_factor' is 1"},
      {[&](SmallGguf& f) { yarn(f), f.set("rope.scaling.yarn_ext_factor", 0.f); }, "yarn_ext_factor' is 0"},
      {[&](SmallGguf& f) { yarn(f), f.set("rope.scaling.yarn_log_multiplier", 0.1f); },
       "yarn_log_multiplier' is 0.1"},
      {[](SmallGguf& f) { f.tensor("rope_freqs.weight", {64}, 3); }, "tensor 'rope_freqs.weight' is [64]"},
      {[](SmallGguf& f) { f.tensor("rope_freqs.weight", {32}, -3); },
       "'rope_freqs.weight' has values that are not"},
      {[](SmallGguf& f) { f.tensor("rope_freqs.weight", {32}, 3).set("rope.scaling.factor", 2.f); },
       "scales RoPE twice"}};
  for (const auto& [make, says] : faults) {
    SmallGguf file = small_gguf("llama");
    make(file);
    EXPECT_THAT(refusal(file), HasSubstr(says));
  }
  EXPECT_THAT(refusal(small_gguf("qwen2").set("attention.sliding_window", 100u)),
              HasSubstr("'qwen2.attention.sliding_window' is 100"));
  EXPECT_THAT(refusal(small_gguf("qwen3").tensor("rope_freqs.weight", {32}, 3)),
              HasSubstr("'rope_freqs.weight'"));
  EXPECT_THAT(refusal(small_gguf("gemma3").set("attention.sliding_window_pattern", std::vector<bool>{true})),
              HasSubstr("has 1 values for 2 layers"));
  EXPECT_THAT(
      refusal(small_gguf("gemma3").set("attention.sliding_window_pattern", std::vector<int32_t>{1, 2})),
      HasSubstr("'gemma3.attention.sliding_window_pattern' has the value 2"));
}

TEST_F(GgufRefusals, NameTensorsAsTheFileDoes) {
  const std::string architectures[] = {"llama", "qwen2", "qwen3", "gemma3"};
  for (const std::string& architecture : architectures) {
    const SmallGguf right = small_gguf(architecture, 1);
    for (const auto& [name, info] : right.tensors) {
      SmallGguf missing = right;
      missing.tensors.erase(name);
      EXPECT_THAT(refusal(missing), HasSubstr("tensor '" + name + "' is missing"));
      SmallGguf longer = right;
      std::vector<uint64_t> shape(info.dimensions.rbegin(), info.dimensions.rend());
      shape.back() += 1;
      longer.tensor(name, shape);
      EXPECT_THAT(refusal(longer), HasSubstr("tensor '" + name + "' is ["));
    }
  }
  const SmallGguf right = small_gguf("llama");
  EXPECT_THAT(
      refusal(SmallGguf(right).tensor("blk.0.attn_q.weight", {128, 64})),
      HasSubstr("tensor 'blk.0.attn_q.weight' is [128, 64] where the configuration needs [128, 128]"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("blk.0.attn_norm.weight", {128, 1})),
              HasSubstr("tensor 'blk.0.attn_norm.weight' is [128, 1] where the configuration needs [128]"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("output.weight", {260, 128})),
              HasSubstr("tensor 'output.weight'"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("token_embd.weight", {261})),
              HasSubstr("tensor 'token_embd.weight'"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("blk.0.ffn_gate_exps.weight", {2, 96, 128})),
              HasSubstr("tensor 'blk.0.ffn_gate_exps.weight' is unknown"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("blk.0.attn_output.bias", {128})),
              HasSubstr("tensor 'blk.0.attn_output.bias' is unknown"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("blk.2.attn_norm.weight", {128})),
              HasSubstr("tensor 'blk.2.attn_norm.weight' is unknown"));
  EXPECT_THAT(refusal(SmallGguf(right).tensor("blk.0.attn_q_norm.weight", {64})),
              HasSubstr("attn_q_norm.weight"));
}

TEST_F(GgufRefusals, NameTokenizers) {
  const auto kinds = [](size_t count, int32_t last) {
    std::vector<int32_t> values(count, 1);
    values.back() = last;
    return values;
  };
  const Fault faults[] = {
      {[](SmallGguf& f) { f.drop("tokenizer.ggml.model"); }, "'tokenizer.ggml.model' is missing"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.model", "bert"); }, "bert"},
      {[](SmallGguf& f) { f.drop("tokenizer.ggml.pre"); }, "'tokenizer.ggml.pre' is missing"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.pre", "tekken-9"); }, "tekken-9"},
      {[](SmallGguf& f) { f.drop("tokenizer.ggml.tokens"); }, "'tokenizer.ggml.tokens' is missing"},
      {[](SmallGguf& f) { f.drop("tokenizer.ggml.token_type"); }, "'tokenizer.ggml.token_type' is missing"},
      {[&](SmallGguf& f) { f.set("tokenizer.ggml.token_type", kinds(260, 1)); }, "260 kinds of pieces"},
      {[&](SmallGguf& f) { f.set("tokenizer.ggml.token_type", kinds(261, 9)); }, "kind 9"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.merges", std::vector<std::string>{"a"}); }, "merge"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.eos_token_id", 261u); }, "261"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.add_eos_token", true); },
       "'tokenizer.ggml.add_eos_token' is true"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.remove_extra_whitespaces", true); },
       "remove_extra_whitespaces"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.add_space_prefix", true); }, "space"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.precompiled_charsmap", std::vector<int32_t>{1}); },
       "'tokenizer.ggml.precompiled_charsmap' is unknown"},
      {[](SmallGguf& f) { f.set("tokenizer.ggml.surprise", 1u); }, "'tokenizer.ggml.surprise' is unknown"},
      {[](SmallGguf& f) { f.set("tokenizer.rwkv.world", "x"); }, "'tokenizer.rwkv.world' is unknown"},
      {[](SmallGguf& f) {
         f.tensor("token_embd.weight", {260, 128});
       },
       "has 261 pieces, tensor 'token_embd.weight' 260 rows"}};
  for (const auto& [make, says] : faults) {
    SmallGguf file = small_gguf("llama");
    make(file);
    EXPECT_THAT(refusal(file), HasSubstr(says));
  }
  SmallGguf gemma = small_gguf("gemma3");
  EXPECT_THAT(refusal(SmallGguf(gemma).set("tokenizer.ggml.scores", std::vector<float>(3))),
              HasSubstr("3 scores"));
  EXPECT_THAT(refusal(gemma.drop("tokenizer.ggml.scores")), HasSubstr("0 scores"));
}

// Any file: with one key or tensor less, and with each key of another type.
TEST_F(GgufRefusals, WhateverIsMissingIsAnErrorOrNothing) {
  for (const char* architecture : {"llama", "gemma3"}) {
    const SmallGguf right = small_gguf(architecture);
    ASSERT_EQ(refusal(right), "(accepted)");
    for (const auto& [key, value] : right.keys) {
      SmallGguf without = right;
      without.keys.erase(key);
      refusal(without);
      for (const std::string& other :
           {value_of(7u), value_of(1e30f), value_of("x"), value_of(true),
            value_of(std::vector<int32_t>{1, 2}), value_of(std::vector<std::string>{"x"})}) {
        SmallGguf changed = right;
        changed.keys[key] = other;
        refusal(changed);
      }
    }
  }
}

}  // namespace
}  // namespace kveval
