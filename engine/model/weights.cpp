#include "engine/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "engine/hash.h"
#include "engine/model/file_error.h"
#include "engine/model/finite.h"

namespace kveval {
namespace {

void check_vector(const std::string& name, const std::vector<float>& values, int width) {
  if (values.size() != size_t(width))
    throw Error(ErrorKind::bad_file, fmt::format("tensor '{}' has {} values where the configuration needs {}",
                                                 name, values.size(), width));
}

void check_optional(const std::string& name, const std::vector<float>& values, int width) {
  if (!values.empty()) check_vector(name, values, width);
}

void check_matrix(const std::string& name, const Tensor& tensor, int64_t wanted_rows, int64_t wanted_cols) {
  const std::array<int64_t, 2> wanted = {wanted_rows, wanted_cols};
  if (!std::ranges::equal(tensor.shape, wanted))
    throw Error(ErrorKind::bad_file, fmt::format("tensor '{}' is {} where the configuration needs {}", name,
                                                 shape_text(tensor.shape), shape_text(wanted)));
  const std::optional<uint64_t> bytes = byte_size(tensor.type, tensor.shape);
  if (!bytes || tensor.data.size() != *bytes)
    throw Error(ErrorKind::bad_file, fmt::format("tensor '{}' is {} but holds {} bytes", name,
                                                 shape_text(tensor.shape), tensor.data.size()));
}

void check_layer(const std::string& name, const LayerWeights& w, const LayerConfig& layer,
                 const ModelConfig& config) {
  const int q_rows = layer.heads * config.head_dim;
  const int kv_rows = layer.kv_heads * config.head_dim;
  check_vector(name + ".attention_norm", w.attention_norm, config.width);
  check_matrix(name + ".q", w.q, q_rows, config.width);
  check_matrix(name + ".k", w.k, kv_rows, config.width);
  check_matrix(name + ".v", w.v, kv_rows, config.width);
  check_optional(name + ".q_bias", w.q_bias, q_rows);
  check_optional(name + ".k_bias", w.k_bias, kv_rows);
  check_optional(name + ".v_bias", w.v_bias, kv_rows);
  check_optional(name + ".q_norm", w.q_norm, config.head_dim);
  check_optional(name + ".k_norm", w.k_norm, config.head_dim);
  check_matrix(name + ".o", w.o, config.width, q_rows);
  check_optional(name + ".post_attention_norm", w.post_attention_norm, config.width);
  check_vector(name + ".ff_norm", w.ff_norm, config.width);
  check_matrix(name + ".gate", w.gate, layer.ff, config.width);
  check_matrix(name + ".up", w.up, layer.ff, config.width);
  check_matrix(name + ".down", w.down, config.width, layer.ff);
  check_optional(name + ".post_ff_norm", w.post_ff_norm, config.width);
}

// Length first, so that moving a value from one tensor to the next changes the hash.
void append_hash(std::string& text, const std::vector<float>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  text += fmt::format("{}:{};", values.size(), hash_hex(bytes));
}

void append_hash(std::string& text, const Tensor& tensor) {
  const std::string_view bytes(reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  text += fmt::format("{}{}:{};", info_of(tensor.type).name, shape_text(tensor.shape), hash_hex(bytes));
}

void append_config(std::string& text, const ModelConfig& config) {
  // {:a} writes a float exactly.
  text +=
      fmt::format("{};{};{};{};{};{:a};{};{};{:a};{:a};", config.architecture, config.width, config.head_dim,
                  config.vocabulary, config.context, config.norm_epsilon, int(config.rope_style),
                  int(config.activation), config.embedding_scale, config.score_scale);
  for (const Rope& rope : config.ropes) {
    text += fmt::format("{:a}:", rope.magnitude);
    for (const double frequency : rope.frequencies) text += fmt::format("{:a},", frequency);
    text += ';';
  }
  for (const LayerConfig& layer : config.layers)
    text += fmt::format("{},{},{},{},{};", layer.heads, layer.kv_heads, layer.window, layer.rope, layer.ff);
}

}  // namespace

std::array<const Tensor*, 7> matrices_of(const LayerWeights& layer) {
  return {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down};
}

std::array<const std::vector<float>*, 9> vectors_of(const LayerWeights& layer) {
  return {&layer.attention_norm,
          &layer.q_bias,
          &layer.k_bias,
          &layer.v_bias,
          &layer.q_norm,
          &layer.k_norm,
          &layer.post_attention_norm,
          &layer.ff_norm,
          &layer.post_ff_norm};
}

Tensor float_tensor(int rows, int cols, std::vector<float> values) {
  auto owner = std::make_shared<const std::vector<float>>(std::move(values));
  Tensor tensor;
  tensor.shape = {rows, cols};
  tensor.data = std::as_bytes(std::span(*owner));
  tensor.owner = std::move(owner);
  return tensor;
}

std::vector<float> floats_of(const Tensor& tensor) {
  std::vector<float> values(size_t(rows(tensor)) * size_t(cols(tensor)));
  for (int64_t row = 0; row < rows(tensor); ++row)
    dequantize_row(tensor, row, values.data() + size_t(row) * size_t(cols(tensor)));
  return values;
}

bool has_tied_head(const Weights& weights) {
  return weights.head.data.data() == weights.embedding.data.data();
}

void set_chat(Model& model, const Vocabulary& vocabulary, std::string_view jinja, const std::string& path) {
  const std::string eos = vocabulary.eos ? vocabulary.pieces[size_t(*vocabulary.eos)] : std::string();
  try {
    model.chat = naming(path, [&] { return detect_chat(jinja, eos); });
  } catch (const Error& error) { model.chat_error = error; }
}

void check_shapes(const Model& model) {
  const ModelConfig& config = model.config;
  const Weights& weights = model.weights;
  check_matrix("embedding", weights.embedding, config.vocabulary, config.width);
  if (weights.layers.size() != config.layers.size())
    throw Error(ErrorKind::bad_file, fmt::format("weights for {} layers where the configuration has {}",
                                                 weights.layers.size(), config.layers.size()));
  for (size_t i = 0; i < config.layers.size(); ++i)
    check_layer(fmt::format("layers.{}", i), weights.layers[i], config.layers[i], config);
  check_vector("output_norm", weights.output_norm, config.width);
  check_matrix("head", weights.head, config.vocabulary, config.width);
}

std::string hash_of(const ModelConfig& config, const Weights& weights) {
  std::string text;
  append_config(text, config);
  append_hash(text, weights.embedding);
  for (const LayerWeights& layer : weights.layers) {
    for (const std::vector<float>* vector : vectors_of(layer)) append_hash(text, *vector);
    for (const Tensor* matrix : matrices_of(layer)) append_hash(text, *matrix);
  }
  append_hash(text, weights.output_norm);
  append_hash(text, weights.head);
  return hash_hex(text);
}

void finish_loading(Model& model) {
  check_numbers(model.name, model.config);
  check_shapes(model);
  check_finite(model.name, model.files);
  model.hash = hash_of(model.config, model.weights);
  model.files.check_intact();
  for (const Tensor& tensor : model.files.all()) model.files.release(tensor);
}

}  // namespace kveval
