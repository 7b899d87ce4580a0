// config.json: what each spelling means, and what is refused, by name.
#include "engine/model/hf_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/model/rope.h"
#include "engine/random.h"
#include "tests/engine/hf_directory.h"

namespace kveval {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

// Keys of `without` are removed, then those of `change` replaced, with null too.
HfConfig config_with(const std::string& type, const std::string& change = "{}",
                     const std::vector<std::string>& without = {}) {
  static std::map<std::string, json> plain;
  if (!plain.contains(type)) plain[type] = hf_directory(type).config;
  json document = plain[type];
  for (const std::string& key : without) document.erase(key);
  document.update(json::parse(change));
  return read_hf_config("config.json", document);
}

std::string error_with(const std::string& type, const std::string& change,
                       const std::vector<std::string>& without = {}) {
  try {
    config_with(type, change, without);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_THAT(error.what(), StartsWith("config.json: '"));
    return std::string(error.what()).substr(13);
  }
  return "no error with " + change;
}

std::vector<int> windows_of(const HfConfig& config) {
  std::vector<int> windows;
  for (const LayerConfig& layer : config.model.layers) windows.push_back(layer.window);
  return windows;
}

void expect_rope(const Rope& rope, const Rope& expected) {
  ASSERT_EQ(rope.frequencies.size(), expected.frequencies.size());
  for (size_t i = 0; i < rope.frequencies.size(); ++i)
    ASSERT_EQ(rope.frequencies[i], expected.frequencies[i]) << "pair " << i;
  EXPECT_EQ(rope.magnitude, expected.magnitude);
  EXPECT_EQ(rope.text, expected.text);
}

TEST(HfConfig, AbsentKeysHaveTheValuesOfTheirClass) {
  const std::vector<std::string> optional = {
      "head_dim",    "num_key_value_heads", "rms_norm_eps", "rope_theta", "max_position_embeddings",
      "torch_dtype", "sliding_window",      "eos_token_id"};
  const auto bare = [&](const char* type, int heads) {
    return config_with(type, fmt::format(R"({{"num_attention_heads": {}}})", heads), optional);
  };
  const HfConfig llama = bare("llama", 1);
  EXPECT_EQ(llama.model.head_dim, 64) << "width by heads";
  EXPECT_EQ(llama.model.layers[0].kv_heads, 1) << "as many as heads";
  EXPECT_EQ(llama.model.norm_epsilon, 1e-6f);
  EXPECT_EQ(llama.model.context, 2048);
  EXPECT_FALSE(llama.tied_head);
  EXPECT_TRUE(llama.eos.empty());
  expect_rope(llama.model.ropes[0], plain_rope(10000, 64));
  EXPECT_EQ(config_with("llama", R"({"num_attention_heads": 4, "hidden_size": 256})", optional)
                .model.layers[0]
                .kv_heads,
            4);

  HfConfig mistral = config_with("mistral", R"({"num_attention_heads": 8, "hidden_size": 512})", optional);
  EXPECT_EQ(mistral.model.layers[0].kv_heads, 8);
  EXPECT_EQ(mistral.model.context, 131072);
  EXPECT_THAT(windows_of(mistral), ElementsAre(4096, 4096)) << "only null switches it off";

  EXPECT_EQ(config_with("mistral", R"({"num_key_value_heads": null})").model.layers[0].kv_heads, 2)
      << "null: as many as heads";
  const HfConfig qwen3 = config_with("qwen3", R"({"num_attention_heads": 32})", optional);
  EXPECT_EQ(qwen3.model.head_dim, 128) << "whatever width and heads are";
  EXPECT_EQ(qwen3.model.layers[0].kv_heads, 32);
  EXPECT_EQ(qwen3.model.context, 32768);

  // What a 4B checkpoint says of its text model is what differs from the class.
  const json sparse = {{"model_type", "gemma3"},
                       {"text_config",
                        {{"model_type", "gemma3_text"},
                         {"hidden_size", 2560},
                         {"intermediate_size", 10240},
                         {"num_hidden_layers", 34},
                         {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                         {"sliding_window", 1024}}},
                       {"architectures", {"Gemma3ForConditionalGeneration"}},
                       {"eos_token_id", {1, 106}},
                       {"image_token_index", 262144},
                       {"mm_tokens_per_image", 256},
                       {"vision_config", {{"hidden_size", 1152}}}};
  const HfConfig gemma = read_hf_config("config.json", sparse);
  const ModelConfig& model = gemma.model;
  EXPECT_EQ(model.vocabulary, 262208);
  EXPECT_EQ(model.context, 131072);
  EXPECT_EQ(model.head_dim, 256);
  EXPECT_EQ(model.layers[0].heads, 8);
  EXPECT_EQ(model.layers[0].kv_heads, 4);
  EXPECT_EQ(model.score_scale, 0.0625);
  EXPECT_EQ(model.embedding_scale, std::sqrt(2560.0f));
  EXPECT_TRUE(gemma.tied_head && gemma.is_multimodal);
  EXPECT_THAT(gemma.eos, ElementsAre(1, 106));
  expect_rope(model.ropes[0], linear_rope(1e6, 256, 8));
  expect_rope(model.ropes[1], plain_rope(1e4, 256));
  for (size_t i = 0; i < model.layers.size(); ++i) {
    EXPECT_EQ(model.layers[i].window, i % 6 == 5 ? 0 : 1024) << i;
    EXPECT_EQ(model.layers[i].rope, i % 6 == 5 ? 0 : 1) << i;
  }
}

TEST(HfConfig, EverySpellingOfARotation) {
  const Yarn yarn{.factor = 4, .original_context = 128};
  const Yarn tuned{
      .factor = 4, .original_context = 128, .beta_fast = 16, .beta_slow = 2, .attention_factor = 1.5};
  const struct {
    const char* change;
    Rope expected;
    int context;
  } cases[] = {
      {"{}", plain_rope(20000, 64), 256},
      {R"({"rope_scaling": null})", plain_rope(20000, 64), 256},
      {R"({"rope_theta": 500000})", plain_rope(5e5, 64), 256},
      {R"({"rope_scaling": {"type": "default"}})", plain_rope(20000, 64), 256},
      {R"({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 2}})",
       linear_rope(20000, 64, 2), 256},
      {R"({"rope_scaling": {"type": "linear", "factor": 2.5}})", linear_rope(20000, 64, 2.5), 256},
      {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 64}})",
       llama3_rope(20000, 64, 8, 1, 4, 64), 256},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}})",
       yarn_rope(20000, 64, yarn), 512},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4.0}, "max_position_embeddings": 128})",
       yarn_rope(20000, 64, yarn), 512},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
           "max_position_embeddings": 1024})",
       yarn_rope(20000, 64, yarn), 1024},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
           "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5, "truncate": true, "mscale": null}})",
       yarn_rope(20000, 64, tuned), 512},
      {R"({"rope_theta": null, "rope_parameters": {"rope_theta": 30000.0, "rope_type": "default"}})",
       plain_rope(30000, 64), 256},
      {R"({"rope_parameters": {"rope_theta": 20000.0, "rope_type": "linear", "factor": 2,
           "partial_rotary_factor": 1.0}})",
       linear_rope(20000, 64, 2), 256},
  };
  for (const auto& [change, expected, context] : cases) {
    SCOPED_TRACE(change);
    const HfConfig config = config_with("llama", change);
    ASSERT_EQ(config.model.ropes.size(), 1u);
    expect_rope(config.model.ropes[0], expected);
    EXPECT_EQ(config.model.context, context);
    EXPECT_EQ(config.model.rope_style, RopeStyle::halves);
  }
}

TEST(HfConfig, GemmaTurnsLayersWithAWindowItsOwnWay) {
  const auto ropes = [](const char* change) {
    return config_with("gemma3_text", change, {"rope_theta", "rope_scaling", "rope_local_base_freq"})
        .model.ropes;
  };
  for (
      const char* change :
      {R"({"rope_theta": 1e6, "rope_scaling": {"rope_type": "linear", "factor": 8}, "rope_local_base_freq": 2e4})",
       R"({"rope_scaling": {"rope_type": "linear", "factor": 8}, "rope_local_base_freq": 2e4})",
       R"({"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}})",
       R"({"rope_scaling": {"full_attention": {"type": "linear", "factor": 8}}, "rope_local_base_freq": 2e4})"}) {
    SCOPED_TRACE(change);
    const std::vector<Rope> both = ropes(change);
    ASSERT_EQ(both.size(), 2u);
    expect_rope(both[0], linear_rope(1e6, 64, 8));
    expect_rope(both[1], plain_rope(2e4, 64));
  }
  expect_rope(ropes("{}")[0], plain_rope(1e6, 64));
  expect_rope(ropes("{}")[1], plain_rope(1e4, 64));
}

TEST(HfConfig, RotationsThatAreNotUnderstood) {
  const struct {
    const char *change, *says;
  } cases[] = {
      {R"({"rope_scaling": {"rope_type": "dynamic", "factor": 2}})", "rope_scaling.rope_type' is 'dynamic'"},
      {R"({"rope_scaling": {"type": "longrope", "short_factor": []}})", "rope_scaling.type' is 'longrope'"},
      {R"({"rope_scaling": {"type": "mrope", "rope_type": "default"}})",
       "rope_scaling.type' is 'mrope', rope_type"},
      {R"({"rope_scaling": {"factor": 2}})", "rope_scaling.factor' is a key that kveval does not know"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2, "ntk": 1}})", "rope_scaling.ntk' is a key that"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor' is missing"},
      {R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", "rope_scaling.factor' is 0.5, below 1"},
      {R"({"rope_scaling": {"type": "linear", "factor": "2"}})",
       "rope_scaling.factor' is '\"2\"', no finite number"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "mscale": 0.7}})",
       "rope_scaling.mscale' is a key that"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "mscale_all_dim": 1}})",
       "mscale_all_dim' is a key that"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "truncate": false}})", "truncate' is 'false'"},
      {R"({"rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 1}})",
       "beta_fast' is not above beta_slow"},
      {R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
       "high_freq_factor' is 4, not above 4"},
      {R"({"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}})",
       "original_max_position_embeddings' is missing"},
      {R"({"rope_scaling": {"partial_rotary_factor": 0.5}})", "rope_scaling.partial_rotary_factor' is '0.5'"},
      {R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor' is '0.5'"},
      {R"({"rope_scaling": 2})", "rope_scaling' is no JSON object"},
      {R"({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default"}})",
       "rope_parameters' is there beside rope_scaling"},
      {R"({"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}})",
       "rope_parameters.rope_theta' is 1000000, but 20000 outside"},
      {R"({"rope_parameters": {"full_attention": {"rope_type": "default"}}})",
       "rope_parameters.full_attention' is a key that"},
      {R"({"rope_theta": 1})", "rope_theta' is 1, not above 1"},
      {R"({"rope_local_base_freq": 10000})", "rope_local_base_freq' is a key that"},
  };
  for (const auto& [change, says] : cases)
    EXPECT_THAT(error_with("llama", change), HasSubstr(says)) << change;
  EXPECT_THAT(
      error_with("gemma3_text",
                 R"({"rope_scaling": null, "rope_parameters": {"rope_type": "linear", "factor": 8}})"),
      HasSubstr("rope_parameters' has neither full_attention nor sliding_attention"));
  EXPECT_THAT(error_with("gemma3_text", R"({"rope_scaling": {"full_attention": {}, "other": {}}})"),
              HasSubstr("rope_scaling.other' is a key that"));
  EXPECT_THAT(error_with("gemma3_text",
                         R"({"rope_scaling": {"sliding_attention": {"rope_type": "linear", "fact": 2}}})"),
              HasSubstr("rope_scaling.sliding_attention.factor' is missing"));
}

TEST(HfConfig, Windows) {
  const struct {
    const char *type, *change;
    std::vector<int> windows;
  } cases[] = {
      {"llama", "{}", {0, 0}},
      {"mistral", "{}", {32, 32}},
      {"mistral", R"({"sliding_window": null})", {0, 0}},
      {"mistral", R"({"sliding_window": null, "layer_types": ["full_attention", "full_attention"]})", {0, 0}},
      {"qwen2", R"({"sliding_window": 8, "use_sliding_window": false, "max_window_layers": 1})", {0, 0}},
      {"qwen2", R"({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1})", {0, 8}},
      {"qwen2", R"({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 0})", {8, 8}},
      {"qwen2", R"({"sliding_window": 8, "use_sliding_window": true})", {0, 0}},  // of 28 layers
      {"qwen2", R"({"sliding_window": null, "use_sliding_window": true, "max_window_layers": 0})", {0, 0}},
      {"qwen3",
       R"({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2,
                    "layer_types": ["sliding_attention", "full_attention"]})",
       {8, 0}},
      {"qwen3", R"({"layer_types": ["full_attention", "full_attention"]})", {0, 0}},
      {"gemma3_text", R"({"sliding_window_pattern": 1})", {0, 0}},
      {"gemma3_text", R"({"sliding_window_pattern": 6})", {16, 16}},
      {"gemma3_text", R"({"sliding_window_pattern": null, "_sliding_window_pattern": 2})", {16, 0}},
      {"gemma3_text", R"({"sliding_window_pattern": null})", {16, 16}},
      {"gemma3_text", R"({"layer_types": ["full_attention", "sliding_attention"]})", {0, 16}},
  };
  for (const auto& [type, change, windows] : cases)
    EXPECT_EQ(windows_of(config_with(type, change)), windows) << type << change;

  const std::string sliding = R"({"layer_types": ["sliding_attention", "full_attention"]})";
  EXPECT_THAT(error_with("qwen2", sliding), HasSubstr("says sliding_attention for layer 0, but there is no"));
  EXPECT_THAT(error_with("llama", sliding), HasSubstr("says sliding_attention for layer 0, but there is no"));
  EXPECT_THAT(error_with("mistral", sliding),
              HasSubstr("says 'full_attention' for layer 1, which has a window of 32"));
  EXPECT_THAT(error_with("qwen2", R"({"layer_types": ["full_attention"]})"),
              HasSubstr("has 1 entries for 2 layers"));
  EXPECT_THAT(error_with("qwen2", R"({"layer_types": ["full_attention", "chunked_attention"]})"),
              HasSubstr("holds 'chunked_attention'"));
  EXPECT_THAT(error_with("llama", R"({"sliding_window": 4})"), HasSubstr("sliding_window' is a key that"));
  EXPECT_THAT(error_with("gemma3_text", R"({"sliding_window": null})"),
              HasSubstr("sliding_window' is null, but most"));
}

TEST(HfConfig, SizesThatCannotBe) {
  const struct {
    const char *change, *says;
  } cases[] = {
      {R"({"hidden_size": 0})", "hidden_size' is '0', no whole number from 1 to 131072"},
      {R"({"hidden_size": 64.0})", "hidden_size' is '64.0'"},
      {R"({"hidden_size": "64"})", "hidden_size' is"},
      {R"({"hidden_size": null})", "hidden_size' is missing"},
      {R"({"num_hidden_layers": 1025})", "num_hidden_layers' is '1025'"},
      {R"({"num_hidden_layers": 18446744073709551615})", "num_hidden_layers' is '18446744073709551615'"},
      {R"({"num_attention_heads": -1})", "num_attention_heads' is '-1'"},
      {R"({"num_key_value_heads": 3})", "num_key_value_heads' is 3, which does not divide 2 heads"},
      {R"({"vocab_size": 1048577})", "vocab_size' is '1048577'"},
      {R"({"max_position_embeddings": 99999999999})", "max_position_embeddings' is"},
      {R"({"head_dim": 80})", "head_dim' is 80; kveval knows 64, 128 and 256"},
      {R"({"head_dim": null})", "head_dim' is 32; kveval knows 64, 128 and 256"},
      {R"({"head_dim": null, "hidden_size": 65})",
       "num_attention_heads' is 2, which does not divide hidden_size 65"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps' is 0, not between 0 and 1"},
  };
  for (const auto& [change, says] : cases)
    EXPECT_THAT(error_with("llama", change), HasSubstr(says)) << change;
}

TEST(HfConfig, WhatWouldChangeTheResultIsRefused) {
  const struct {
    const char *type, *change, *says;
  } cases[] = {
      {"llama", R"({"model_type": "smollm3"})", "model_type' is 'smollm3'; kveval knows llama, mistral"},
      {"llama", R"({"model_type": null})", "model_type' is missing"},
      {"llama", R"({"architectures": ["LlamaForSequenceClassification"]})", "architectures' holds"},
      {"llama", R"({"attention_bias": true})", "attention_bias' is 'true'; kveval knows false only"},
      {"qwen2", R"({"attention_bias": false})", "attention_bias' is 'false'; kveval knows true only"},
      {"qwen3", R"({"attention_bias": true})", "attention_bias' is 'true'"},
      {"llama", R"({"mlp_bias": true})", "mlp_bias' is 'true'"},
      {"llama", R"({"rope_interleaved": true})", "rope_interleaved' is 'true'"},
      {"llama", R"({"hidden_act": "gelu"})",
       "hidden_act' is 'gelu'; kveval knows silu and gelu_pytorch_tanh"},
      {"gemma3_text", R"({"hidden_activation": "gelu"})", "hidden_activation' is 'gelu'"},
      {"gemma3_text", R"({"hidden_act": "silu"})", "hidden_act' is '\"silu\"'"},
      {"gemma3_text", R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping' is set"},
      {"gemma3_text", R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping' is set"},
      {"gemma3_text", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention' is 'true'"},
      {"gemma3_text", R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar' is 0"},
      {"llama", R"({"auto_map": {"AutoModel": "a.B"}})", "auto_map' is a key that kveval does not know"},
      {"llama", R"({"logit_scale": 2})", "logit_scale' is a key that"},
      {"llama", R"({"tie_word_embeddings": 1})", "tie_word_embeddings' is neither true nor false"},
      {"qwen2", R"({"dual_chunk_attention_config": {}})", "dual_chunk_attention_config' is a key that"},
      {"gemma3", R"({"text_config": null})", "text_config' is missing"},
      {"gemma3", R"({"tie_word_embeddings": false})", "tie_word_embeddings' contradicts"},
      {"gemma3", R"({"text_config": {"model_type": "llama"}})", "text_config.model_type' is '\"llama\"'"},
      {"gemma3", R"({"text_config": {"model_type": "gemma3_text", "alibi": 1}})",
       "text_config.alibi' is a key that"},
  };
  for (const auto& [type, change, says] : cases)
    EXPECT_THAT(error_with(type, change), HasSubstr(says)) << change;
  EXPECT_EQ(config_with("llama", R"({"hidden_act": "gelu_pytorch_tanh"})").model.activation,
            Activation::gelu_tanh);
  EXPECT_NO_THROW(config_with("llama", R"({"some_new_feature": null, "temperature": 0.7, "pretraining_tp": 1,
      "rope_interleaved": false, "mlp_bias": false, "attention_bias": false, "is_llama_config": true,
      "bos_token_id": null, "architectures": ["LlamaForCausalLM"], "transformers.js_config": {"a": {"b": 1}}})"));
}

TEST(HfConfig, QuantizedWeightsAreRefusedAndCacheSchemesAreNot) {
  const auto error = [](const std::string& scheme) {
    return error_with("llama", R"({"quantization_config": )" + scheme + "}");
  };
  const std::string cache =
      R"("kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true)";
  for (
      const std::string& scheme :
      {R"({"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": ["lm_head"],
            "quantization_status": "frozen", "global_compression_ratio": 1.0, "sparsity_config": {},
            "transform_config": {}, "version": "0.12", )" +
           cache + R"(, "group_size": null}})",
       R"({"quant_method": "modelopt", "quant_algo": null, "kv_cache_quant_algo": "FP8",
            "exclude_modules": [], "producer": {"name": "modelopt"}})" +
           std::string(),
       R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "dense"}, )" + cache + "}}"})
    EXPECT_EQ(error(scheme).substr(0, 8), "no error") << scheme;

  const struct {
    std::string scheme;
    const char* says;
  } cases[] = {
      {R"({"quant_method": "gptq", "bits": 4})", "quant_method' says that weights are quantized by 'gptq'"},
      {R"({"quant_method": "fp8", "activation_scheme": "dynamic"})", "are quantized by 'fp8'"},
      {R"({"quant_method": "modelopt", "quant_algo": "NVFP4"})", "quantization_config.quant_algo' says"},
      {R"({"config_groups": {"group_0": {"weights": {"num_bits": 8}}}})", "config_groups' says that weights"},
      {R"({"transform_config": {"u": 1}})", "transform_config' says that weights are rotated"},
      {R"({"sparsity_config": {"format": "sparse-24-bitmask"}})", "sparsity_config.format' is"},
      {R"({"kv_cache_quant_algo": "NVFP4"})", "kv_cache_quant_algo' is"},
      {R"({"modules": 1})", "quantization_config.modules' is a key that"},
      {R"({"kv_cache_scheme": {"num_bits": 4}})", "kv_cache_scheme.num_bits' is '4'; kveval knows 8 only"},
      {R"({"kv_cache_scheme": {"type": "int"}})", "kv_cache_scheme.type' is"},
      {R"({"kv_cache_scheme": {"dynamic": true}})", "kv_cache_scheme.dynamic' is"},
      {R"({"kv_cache_scheme": {"symmetric": false}})", "kv_cache_scheme.symmetric' is"},
      {R"({"kv_cache_scheme": {"group_size": 32}})", "kv_cache_scheme.group_size' is set"},
      {R"({"kv_cache_scheme": {"zero_point": 1}})", "kv_cache_scheme.zero_point' is a key that"},
  };
  for (const auto& [scheme, says] : cases) EXPECT_THAT(error(scheme), HasSubstr(says)) << scheme;
}

// Any value under any key: a configuration or one clear error, nothing else.
TEST(HfConfig, WhateverTheValuesAre) {
  const char* const kValues[] = {
      "null",
      "true",
      "0",
      "1",
      "-1",
      "0.5",
      "1e308",
      "-1e-308",
      "16777216",
      "2147483647",
      "18446744073709551615",
      R"("")",
      R"("yarn")",
      R"("linear")",
      "[]",
      "[1]",
      "[[]]",
      "[null]",
      "{}",
      R"({"type": "yarn", "factor": 1e308})",
      R"({"type": "llama3", "factor": 8, "low_freq_factor": 1e-300, "high_freq_factor": 1e300,
          "original_max_position_embeddings": 1e-300})",
      R"({"type": "yarn", "factor": 4, "beta_fast": 1e300, "original_max_position_embeddings": 1e-300})",
      R"({"full_attention": {"rope_type": "yarn", "factor": 4, "beta_fast": 1e300}})",
      R"(["sliding_attention", "full_attention"])"};
  Random random(5);
  size_t accepted = 0, refused = 0;
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3", "gemma3_text", "gemma3"}) {
    json plain = hf_directory(type).config;
    for (const char* key :
         {"rope_scaling", "rope_parameters", "layer_types", "sliding_window", "use_sliding_window",
          "quantization_config", "tie_word_embeddings", "architectures"})
      if (!plain.contains(key) && std::string_view(type) != "gemma3") plain[key] = nullptr;
    std::vector<std::string> keys;
    for (const auto& [key, value] : plain.items()) keys.push_back(key);
    for (int i = 0; i < 600; ++i) {
      json document = plain;
      for (uint64_t changes = 1 + random.below(3); changes > 0; --changes)
        document[keys[random.below(keys.size())]] = json::parse(kValues[random.below(std::size(kValues))]);
      try {
        const HfConfig config = read_hf_config("config.json", document);
        ++accepted;
        for (const Rope& rope : config.model.ropes)
          for (const double frequency : rope.frequencies) ASSERT_TRUE(std::isfinite(frequency)) << document;
        for (const LayerConfig& layer : config.model.layers)
          ASSERT_TRUE(layer.kv_heads >= 1 && layer.heads % layer.kv_heads == 0 && layer.window >= 0);
      } catch (const Error& error) {
        ++refused;
        ASSERT_EQ(error.kind, ErrorKind::bad_file);
      }
    }
  }
  EXPECT_GT(accepted, 100u);
  EXPECT_GT(refused, 1000u);
}

}  // namespace
}  // namespace kveval
