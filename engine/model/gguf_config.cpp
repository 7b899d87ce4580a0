#include "engine/model/gguf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/model/file_error.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"

namespace kveval {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama", .rope_style = RopeStyle::interleaved},
    {.name = "qwen2", .biases = true},
    {.name = "qwen3", .head_norms = true},
    {.name = "gemma3",
     .activation = Activation::gelu_tanh,
     .head_norms = true,
     .post_norms = true,
     .scales_embedding = true},
};

// The keys of one architecture, by what follows "A.".
class Keys {
 public:
  Keys(GgufMetadata& metadata, std::string_view architecture)
      : metadata_(metadata), prefix_(std::string(architecture) + '.') {}

  std::string key(std::string_view name) const { return prefix_ + std::string(name); }
  bool has(std::string_view name) const { return metadata_.has(key(name)); }
  bool is_array(std::string_view name) const { return metadata_.is_array(key(name)); }

  std::optional<uint64_t> count(std::string_view name, uint64_t max) {
    return metadata_.count(key(name), max);
  }
  // 1 .. max
  int need_positive_count(std::string_view name, uint64_t max) {
    const uint64_t value = metadata_.need_count(key(name), max);
    if (value == 0) throw error(name, "is 0");
    return int(value);
  }
  std::vector<int> need_per_layer(std::string_view name, size_t layers, uint64_t max) {
    const auto values = metadata_.counts_per_layer(key(name), layers, max);
    if (!values) throw error(name, "is missing");
    if (std::ranges::find(*values, uint64_t(0)) != values->end()) throw error(name, "is 0 for a layer");
    return {values->begin(), values->end()};
  }
  std::vector<int> per_layer(std::string_view name, size_t layers, uint64_t max,
                             const std::vector<int>& when_absent) {
    return has(name) ? need_per_layer(name, layers, max) : when_absent;
  }
  std::optional<double> positive_number(std::string_view name) {
    const std::optional<double> value = metadata_.number(key(name));
    if (value && *value <= 0) throw error(name, fmt::format("is {}, not above 0", *value));
    return value;
  }
  std::optional<double> number(std::string_view name) { return metadata_.number(key(name)); }
  std::optional<std::string_view> text(std::string_view name) { return metadata_.text(key(name)); }
  GgufMetadata& metadata() { return metadata_; }

  Error error(std::string_view name, const std::string& what, std::string hint = {}) const {
    return metadata_.error(key(name), what, std::move(hint));
  }

 private:
  GgufMetadata& metadata_;
  std::string prefix_;
};

// Keys that change the result unless they say that they do not.
void refuse_what_is_not_done(Keys& keys) {
  for (const char* name : {"expert_count", "expert_used_count"})
    if (const auto value = keys.count(name, UINT64_MAX); value && *value != 0)
      throw keys.error(name, fmt::format("is {}: kveval does not run mixtures of experts", *value));
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (const auto value = keys.number(name); value && *value != 0)
      throw keys.error(name, fmt::format("is {}: kveval does not cap logits", *value));
}

// The same in every layer, as the cache and the RoPE tables take it.
int read_head_dim(Keys& keys, int width, const std::vector<int>& heads) {
  const auto key_length = keys.count("attention.key_length", kMaxHeadDim);
  const auto value_length = keys.count("attention.value_length", kMaxHeadDim);
  if (!key_length && (width % heads[0] != 0 || std::ranges::count(heads, heads[0]) != std::ssize(heads)))
    throw keys.error("attention.key_length",
                     "is missing, and the layers' heads do not share the width evenly");
  const uint64_t head_dim = key_length.value_or(uint64_t(width / heads[0]));
  if (value_length.value_or(head_dim) != head_dim)
    throw keys.error(
        "attention.value_length",
        fmt::format("is {} where keys have {}: kveval runs heads of one size", *value_length, head_dim));
  if (!is_known_head_dim(int64_t(head_dim)))
    throw file_error(keys.metadata().path(),
                     fmt::format("heads of size {}, kveval runs 64, 128 and 256", head_dim));
  if (head_dim > uint64_t(width))  // no model is so; and a narrow stream would let a small file ask for much
    throw keys.error("embedding_length", fmt::format("is {}, less than one head of {}", width, head_dim));
  if (const auto turned = keys.count("rope.dimension_count", kMaxHeadDim); turned && *turned != head_dim)
    throw keys.error("rope.dimension_count",
                     fmt::format("is {}: kveval rotates whole heads of {}", *turned, head_dim));
  return int(head_dim);
}

double read_theta(Keys& keys, std::string_view name, double when_absent) {
  const double theta = keys.number(name).value_or(when_absent);
  if (!(theta > 1)) throw keys.error(name, fmt::format("is {}, not above 1", theta));
  return theta;
}

// A key that other engines read in more than one way, fine where it says what happens anyway.
void allow_only(Keys& keys, std::string_view name, double neutral) {
  const auto value = keys.number(name);
  if (value && std::abs(*value - neutral) > 1e-4)
    throw keys.error(name, fmt::format("is {}, kveval understands {:.4g} alone", *value, neutral));
}

// The converter writes the checkpoint's own betas. Its attention factor stands for the default's replacement
// in some checkpoints and for a multiple of it in others: only the default itself is clear.
Rope read_yarn(Keys& keys, double theta, double factor, ModelConfig& config) {
  constexpr double kLargestFactor = 1024;
  Yarn yarn{.factor = factor};
  if (factor < 1 || factor > kLargestFactor)
    throw keys.error("rope.scaling.factor",
                     fmt::format("is {}, outside 1 to {}, for YaRN", factor, kLargestFactor));
  yarn.original_context = keys.need_positive_count("rope.scaling.original_context_length", kMaxContext);
  yarn.beta_fast = keys.positive_number("rope.scaling.yarn_beta_fast").value_or(yarn.beta_fast);
  yarn.beta_slow = keys.positive_number("rope.scaling.yarn_beta_slow").value_or(yarn.beta_slow);
  if (!(yarn.beta_fast > yarn.beta_slow))
    throw keys.error("rope.scaling.yarn_beta_fast",
                     fmt::format("is {}, not above yarn_beta_slow, {}", yarn.beta_fast, yarn.beta_slow));
  const double magnitude = yarn_magnitude(factor);
  allow_only(keys, "rope.scaling.yarn_ext_factor", 1);
  allow_only(keys, "rope.scaling.yarn_attn_factor", magnitude);
  allow_only(keys, "rope.scaling.yarn_log_multiplier", 0);
  yarn.attention_factor = magnitude * keys.positive_number("rope.scaling.attn_factor").value_or(1);
  config.context = yarn_context(yarn, config.context);
  return yarn_rope(theta, config.head_dim, yarn);
}

// A factor without a type is linear.
Rope read_scaled_rope(Keys& keys, double theta, ModelConfig& config) {
  const char* const factor_key =
      keys.has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear";
  const auto factor = keys.positive_number(factor_key);
  const std::string_view type = keys.text("rope.scaling.type").value_or("linear");
  keys.metadata().flag(keys.key("rope.scaling.finetuned"));  // says how the model came about
  if (type == "yarn") {
    if (!factor) throw keys.error("rope.scaling.factor", "is missing, for YaRN");
    return read_yarn(keys, theta, *factor, config);
  }
  allow_only(keys, "rope.scaling.attn_factor", 1);
  if (type == "none") return plain_rope(theta, config.head_dim);
  if (type != "linear")
    throw keys.error("rope.scaling.type",
                     fmt::format("is {}, kveval knows none, linear and yarn", quote(type)));
  // Files that scale nothing often state the length they do not scale from.
  keys.count("rope.scaling.original_context_length", UINT64_MAX);
  return factor.value_or(1) == 1 ? plain_rope(theta, config.head_dim)
                                 : linear_rope(theta, config.head_dim, *factor);
}

Rope read_divided_rope(const std::string& path, const Tensor& divisors, double theta, int head_dim,
                       const Rope& scaled) {
  if (divisors.shape != std::vector<int64_t>{head_dim / 2})
    throw file_error(path, fmt::format("tensor {} is {} where heads of {} need [{}]", quote(divisors.name),
                                       shape_text(divisors.shape), head_dim, head_dim / 2));
  const std::vector<float> values = floats_of(divisors);
  if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value) && value > 0; }))
    throw file_error(path, fmt::format("tensor {} has values that are not above 0", quote(divisors.name)));
  if (scaled.frequencies != plain_rope(theta, head_dim).frequencies)
    throw file_error(
        path, fmt::format("scales RoPE twice, with tensor {} and with its keys", quote(divisors.name)));
  return divided_rope(theta, head_dim, values);
}

// May lengthen the context.
Rope read_rope(Keys& keys, TensorSet& tensors, ModelConfig& config) {
  const double theta = read_theta(keys, "rope.freq_base", 10000);
  Rope rope = read_scaled_rope(keys, theta, config);
  if (config.architecture != "llama") return rope;
  const Tensor* const divisors = tensors.find("rope_freqs.weight");
  return divisors == nullptr
             ? rope
             : read_divided_rope(keys.metadata().path(), *divisors, theta, config.head_dim, rope);
}

// Which of gemma3's layers see the window alone: those that the file marks, or all but the last of every
// `period`.
std::vector<bool> read_local_layers(Keys& keys, size_t layers) {
  constexpr std::string_view kName = "attention.sliding_window_pattern";
  constexpr uint64_t kPeriod = 6;
  std::vector<bool> local(layers);
  if (keys.is_array(kName)) {
    if (keys.metadata().is_array_of(keys.key(kName), GgufValue::boolean)) {
      local = *keys.metadata().flags(keys.key(kName));
    } else {
      const auto numbers = keys.metadata().integers(keys.key(kName), 0, 1);
      local.assign(numbers->begin(), numbers->end());
    }
    if (local.size() != layers)
      throw keys.error(kName, fmt::format("has {} values for {} layers", local.size(), layers));
    return local;
  }
  const uint64_t period = keys.count(kName, kMaxLayers).value_or(kPeriod);
  for (size_t i = 0; i < layers; ++i) local[i] = period == 0 || i % period < period - 1;
  return local;
}

// Sliding windows: all layers of a llama (Mistral), some of a gemma3, which turn by a base of their own and
// are never stretched. A window that the context fits into changes nothing.
void read_windows(Keys& keys, const GgufArchitecture& architecture, ModelConfig& config) {
  constexpr std::string_view kName = "attention.sliding_window";
  constexpr double kLocalTheta = 10000;
  const uint64_t window = keys.count(kName, UINT32_MAX).value_or(0);
  const bool is_gemma = architecture.name == "gemma3";
  if (!is_gemma && (window == 0 || window >= uint64_t(config.context))) return;
  if (!is_gemma && architecture.name != "llama")
    throw keys.error(kName, fmt::format("is {}: which layers of a {} it concerns is not known", window,
                                        architecture.name));
  if (window == 0) return;
  const int capped = int(std::min(window, uint64_t(config.context)));
  if (!is_gemma) {
    for (LayerConfig& layer : config.layers) layer.window = capped;
    return;
  }
  const std::vector<bool> local = read_local_layers(keys, config.layers.size());
  config.ropes.push_back(plain_rope(read_theta(keys, "rope.freq_base_swa", kLocalTheta), config.head_dim));
  for (size_t i = 0; i < local.size(); ++i) {
    if (!local[i]) continue;
    config.layers[i].window = capped;
    config.layers[i].rope = 1;
  }
}

}  // namespace

const GgufArchitecture& gguf_architecture(GgufMetadata& metadata) {
  const std::string_view name = metadata.need_text("general.architecture");
  const auto found = std::ranges::find(kArchitectures, name, &GgufArchitecture::name);
  if (found != std::end(kArchitectures)) return *found;
  throw file_error(metadata.path(),
                   fmt::format("is of the architecture {}, which kveval does not run", quote(name)),
                   "kveval runs llama (Mistral, SmolLM2), qwen2, qwen3 and gemma3");
}

ModelConfig read_gguf_config(Gguf& file, const GgufArchitecture& architecture) {
  Keys keys(file.metadata, architecture.name);
  refuse_what_is_not_done(keys);
  ModelConfig config;
  config.architecture = architecture.name;
  config.width = keys.need_positive_count("embedding_length", kMaxWidth);
  config.context = keys.need_positive_count("context_length", kMaxContext);
  const auto layers = size_t(keys.need_positive_count("block_count", kMaxLayers));
  const std::vector<int> heads = keys.need_per_layer("attention.head_count", layers, kMaxHeads);
  const std::vector<int> kv_heads = keys.per_layer("attention.head_count_kv", layers, kMaxHeads, heads);
  const std::vector<int> ff = keys.need_per_layer("feed_forward_length", layers, kMaxFeedForward);
  for (size_t i = 0; i < layers; ++i) {
    if (heads[i] % kv_heads[i] != 0)
      throw keys.error(
          "attention.head_count_kv",
          fmt::format("is {} in layer {}, which does not divide its {} heads", kv_heads[i], i, heads[i]));
    config.layers.push_back({.heads = heads[i], .kv_heads = kv_heads[i], .ff = ff[i]});
  }
  config.head_dim = read_head_dim(keys, config.width, heads);

  const auto epsilon = keys.positive_number("attention.layer_norm_rms_epsilon");
  if (!epsilon) throw keys.error("attention.layer_norm_rms_epsilon", "is missing");
  if (*epsilon > 1 || float(*epsilon) <= 0)
    throw keys.error("attention.layer_norm_rms_epsilon", fmt::format("is {}", *epsilon));
  config.norm_epsilon = float(*epsilon);
  config.activation = architecture.activation;
  if (architecture.scales_embedding) config.embedding_scale = float(std::sqrt(double(config.width)));
  // Gemma 3 27B divides by the square root of width / heads, and no key says so.
  constexpr size_t kLayersOfGemma27B = 62;
  if (architecture.name == "gemma3" && layers == kLayersOfGemma27B)
    config.score_scale = 1 / std::sqrt(double(config.width) / heads[0]);

  config.rope_style = architecture.rope_style;
  config.ropes.push_back(read_rope(keys, file.tensors, config));
  read_windows(keys, architecture, config);
  return config;
}

}  // namespace kveval
