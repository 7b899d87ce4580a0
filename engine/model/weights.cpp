#include "engine/model/weights.h"

#include <fmt/format.h>

#include <string_view>

#include "engine/error.h"
#include "engine/hash.h"

namespace kveval {
namespace {

void check_vector(const std::string& name, const std::vector<float>& values, int width) {
  if (values.size() != size_t(width))
    throw Error(ErrorKind::bad_file, fmt::format("tensor '{}' has {} values where the configuration needs {}",
                                                 name, values.size(), width));
}

void check_matrix(const std::string& name, const Matrix& matrix, int rows, int cols) {
  if (matrix.rows != rows || matrix.cols != cols)
    throw Error(ErrorKind::bad_file,
                fmt::format("tensor '{}' is {} x {} where the configuration needs {} x {}", name, matrix.rows,
                            matrix.cols, rows, cols));
  if (matrix.values.size() != size_t(rows) * size_t(cols))
    throw Error(ErrorKind::bad_file, fmt::format("tensor '{}' is {} x {} but holds {} values", name, rows,
                                                 cols, matrix.values.size()));
}

void check_layer(const std::string& name, const LayerWeights& w, const LayerConfig& layer,
                 const ModelConfig& config) {
  const int q_rows = layer.heads * config.head_dim;
  const int kv_rows = layer.kv_heads * config.head_dim;
  check_vector(name + ".attention_norm", w.attention_norm, config.width);
  check_matrix(name + ".q", w.q, q_rows, config.width);
  check_matrix(name + ".k", w.k, kv_rows, config.width);
  check_matrix(name + ".v", w.v, kv_rows, config.width);
  check_matrix(name + ".o", w.o, config.width, q_rows);
  check_vector(name + ".ff_norm", w.ff_norm, config.width);
  check_matrix(name + ".gate", w.gate, layer.ff, config.width);
  check_matrix(name + ".up", w.up, layer.ff, config.width);
  check_matrix(name + ".down", w.down, config.width, layer.ff);
}

// Length first, so that moving a value from one tensor to the next changes the hash.
void append_hash(std::string& text, const std::vector<float>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  text += fmt::format("{}:{};", values.size(), hash_hex(bytes));
}

}  // namespace

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
  // {:a} writes a float exactly.
  std::string text = fmt::format("{};{};{};{};{};{:a};{:a};{};", config.architecture, config.width,
                                 config.head_dim, config.vocabulary, config.context, config.norm_epsilon,
                                 config.rope_theta, int(config.rope_style));
  for (const LayerConfig& layer : config.layers)
    text +=
        fmt::format("{},{},{},{},{};", layer.heads, layer.kv_heads, layer.window, int(layer.rope), layer.ff);
  append_hash(text, weights.embedding.values);
  for (const LayerWeights& layer : weights.layers) {
    append_hash(text, layer.attention_norm);
    for (const Matrix* matrix : {&layer.q, &layer.k, &layer.v, &layer.o}) append_hash(text, matrix->values);
    append_hash(text, layer.ff_norm);
    for (const Matrix* matrix : {&layer.gate, &layer.up, &layer.down}) append_hash(text, matrix->values);
  }
  append_hash(text, weights.output_norm);
  append_hash(text, weights.head.values);
  return hash_hex(text);
}

}  // namespace kveval
