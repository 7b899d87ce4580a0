#include "tests/engine/hf_directory.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "engine/kv/codec.h"
#include "engine/model/rope.h"
#include "tests/engine/malformed_safetensors.h"
#include "tests/engine/reference_forward.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

using nlohmann::json;

bool is_gemma(const std::string& type) { return type.starts_with("gemma3"); }

ModelConfig model_config(const std::string& type) {
  ModelConfig config;
  config.architecture = type == "mistral" ? "llama" : is_gemma(type) ? "gemma3" : type;
  config.width = 64;
  config.head_dim = type == "qwen3" ? 128 : 64;
  config.vocabulary = 270;
  config.context = 256;
  config.norm_epsilon = 1e-5f;
  config.ropes = {plain_rope(20000, config.head_dim)};
  LayerConfig layer;
  layer.heads = 2;
  layer.ff = 48;
  if (type == "mistral") layer.window = 32;
  config.layers = {layer, layer};
  if (!is_gemma(type)) return config;
  config.activation = Activation::gelu_tanh;
  config.embedding_scale = 8;    // the root of 64
  config.score_scale = 1 / 6.0;  // the root of 36
  config.ropes = {linear_rope(1e6, 64, 4), plain_rope(10000, 64)};
  config.layers[0].window = 16;
  config.layers[0].rope = 1;
  return config;
}

json text_config(const std::string& type, const ModelConfig& config) {
  json document = {{"model_type", type == "gemma3" ? "gemma3_text" : type},
                   {"hidden_size", config.width},
                   {"intermediate_size", 48},
                   {"num_hidden_layers", 2},
                   {"num_attention_heads", 2},
                   {"num_key_value_heads", 1},
                   {"vocab_size", config.vocabulary},
                   {"max_position_embeddings", config.context},
                   {"rms_norm_eps", 1e-5},
                   {"rope_theta", 20000.0},
                   {"head_dim", config.head_dim},
                   {"torch_dtype", "float32"},
                   {"eos_token_id", 259}};
  if (type == "mistral") document["sliding_window"] = 32;
  if (is_gemma(type))
    document.update({{"rope_theta", 1e6},
                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}},
                     {"rope_local_base_freq", 1e4},
                     {"query_pre_attn_scalar", 36},
                     {"sliding_window", 16},
                     {"sliding_window_pattern", 2},
                     {"hidden_activation", "gelu_pytorch_tanh"},
                     {"final_logit_softcapping", nullptr}});
  return document;
}

void store_layer(HfDirectory& directory, const std::string& at, const LayerWeights& w, bool gemma) {
  const auto matrix = [&](const char* name, const Tensor& tensor) {
    directory.tensors[at + name] = stored(floats_of(tensor), tensor.shape);
  };
  const auto vector = [&](const char* name, std::vector<float> values, bool is_norm = false) {
    if (values.empty()) return;
    for (float& value : values) value -= is_norm && gemma ? 1.0f : 0.0f;
    directory.tensors[at + name] = stored(values, {int64_t(values.size())});
  };
  matrix("self_attn.q_proj.weight", w.q);
  matrix("self_attn.k_proj.weight", w.k);
  matrix("self_attn.v_proj.weight", w.v);
  matrix("self_attn.o_proj.weight", w.o);
  matrix("mlp.gate_proj.weight", w.gate);
  matrix("mlp.up_proj.weight", w.up);
  matrix("mlp.down_proj.weight", w.down);
  vector("self_attn.q_proj.bias", w.q_bias);
  vector("self_attn.k_proj.bias", w.k_bias);
  vector("self_attn.v_proj.bias", w.v_bias);
  vector("self_attn.q_norm.weight", w.q_norm, true);
  vector("self_attn.k_norm.weight", w.k_norm, true);
  vector("input_layernorm.weight", w.attention_norm, true);
  vector("post_attention_layernorm.weight", gemma ? w.post_attention_norm : w.ff_norm, true);
  if (!gemma) return;
  vector("pre_feedforward_layernorm.weight", w.ff_norm, true);
  vector("post_feedforward_layernorm.weight", w.post_ff_norm, true);
}

void store_weights(HfDirectory& directory, const std::string& type) {
  const std::string outer = type == "gemma3" ? "language_model." : "", at = outer + "model.";
  const Weights& weights = directory.model.weights;
  const auto matrix = [&](const std::string& name, const Tensor& tensor) {
    directory.tensors[name] = stored(floats_of(tensor), tensor.shape);
  };
  matrix(at + "embed_tokens.weight", weights.embedding);
  for (size_t i = 0; i < weights.layers.size(); ++i)
    store_layer(directory, fmt::format("{}layers.{}.", at, i), weights.layers[i], is_gemma(type));
  std::vector<float> norm = weights.output_norm;
  for (float& value : norm) value -= is_gemma(type) ? 1.0f : 0.0f;
  directory.tensors[at + "norm.weight"] = stored(norm, {int64_t(norm.size())});
  if (!has_tied_head(weights)) matrix(outer + "lm_head.weight", weights.head);
}

}  // namespace

StoredTensor stored(const std::vector<float>& values, std::vector<int64_t> shape, const std::string& dtype) {
  StoredTensor tensor{dtype, std::move(shape), {}};
  for (const float value : values) {
    if (dtype == "F16")
      tensor.bytes += raw(kv::encode_fp16(value));
    else if (dtype == "BF16")
      tensor.bytes += raw(kv::encode_bf16(value));
    else
      tensor.bytes += raw(value);
  }
  return tensor;
}

std::string safetensors_of(const std::map<std::string, StoredTensor>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_file(header.dump(), data);
}

std::string HfDirectory::write(const TemporaryFolder& folder, int shards) const {
  folder.write("config.json", config.dump());
  folder.write("tokenizer.json", tokenizer.dump());
  folder.write("tokenizer_config.json", tokenizer_config.dump());
  if (shards == 1) {
    folder.write("model.safetensors", safetensors_of(tensors));
    return folder.path();
  }
  std::vector<std::map<std::string, StoredTensor>> parts(static_cast<size_t>(shards));
  json index = {{"metadata", {{"total_size", 1}}}};
  size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t part = next++ % parts.size();
    parts[part][name] = tensor;
    index["weight_map"][name] = fmt::format("model-{}.safetensors", part);
  }
  for (size_t i = 0; i < parts.size(); ++i)
    folder.write(fmt::format("model-{}.safetensors", i), safetensors_of(parts[i]));
  folder.write("model.safetensors.index.json", index.dump());
  return folder.path();
}

HfDirectory hf_directory(const std::string& type, uint64_t seed) {
  const bool gemma = is_gemma(type);
  HfDirectory directory;
  Model& model = directory.model;
  model = reference::random_model(
      model_config(type), seed,
      {.biases = type == "qwen2", .head_norms = gemma || type == "qwen3", .post_norms = gemma});
  if (gemma) model.weights.head = model.weights.embedding;
  model.hash = hash_of(model.config, model.weights);

  directory.config = text_config(type, model.config);
  if (type == "gemma3")
    directory.config = {
        {"model_type", type}, {"text_config", directory.config}, {"vision_config", {{"a", 1}}}};
  store_weights(directory, type);
  const Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {{"t", "h"}, {"th", "e"}});
  directory.tokenizer = byte_level_json(vocabulary);
  directory.tokenizer_config = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  return directory;
}

}  // namespace kveval
