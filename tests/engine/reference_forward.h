// A forward pass in float64, written to be read: what every engine is compared with. Works straight from
// Weights and ModelConfig and shares nothing with the engines; sines, exponentials and powers are the C++
// library's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/weights.h"
#include "engine/random.h"
#include "engine/text/tokenizer.h"

namespace kveval::reference {

using Vector = std::vector<double>;

// Row-major floats that a test can read and change; Tensors cannot be changed.
struct Matrix {
  int rows = 0, cols = 0;
  std::vector<float> values;
  float* row(int r) { return values.data() + size_t(r) * size_t(cols); }
  const float* row(int r) const { return values.data() + size_t(r) * size_t(cols); }
};
inline Matrix matrix_of(const Tensor& tensor) {
  return {int(kveval::rows(tensor)), int(kveval::cols(tensor)), floats_of(tensor)};
}
inline Tensor tensor_of(const Matrix& matrix) {
  return float_tensor(matrix.rows, matrix.cols, matrix.values);
}

// Replaces keys (after RoPE) or values by what a cache would give back.
// rows: [tokens][kv_heads][head_dim], flattened.
using CacheRounding = std::function<void(int layer, bool keys, Vector& rows)>;

// W x. Columns outside, so that the compiler can keep several rows in flight; each row still sums in column
// order. Columns of zeros, most of the phantom's, are left out.
class Linear {
 public:
  explicit Linear(const Tensor& tensor) : rows_(size_t(kveval::rows(tensor))) {
    const Matrix matrix = matrix_of(tensor);
    for (int c = 0; c < matrix.cols; ++c) {
      Vector column(rows_);
      for (int r = 0; r < matrix.rows; ++r) column[size_t(r)] = matrix.row(r)[c];
      if (column != Vector(rows_, 0.0)) columns_.emplace_back(size_t(c), std::move(column));
    }
  }

  Vector operator()(const Vector& x) const {
    Vector y(rows_, 0.0);
    for (const auto& [c, column] : columns_)
      for (size_t r = 0; r < rows_; ++r) y[r] += column[r] * x[c];
    return y;
  }

 private:
  size_t rows_;
  std::vector<std::pair<size_t, Vector>> columns_;
};

inline Vector rms_norm(const Vector& x, const std::vector<float>& weight, double epsilon) {
  double squares = 0;
  for (double value : x) squares += value * value;
  const double scale = 1.0 / std::sqrt(squares / double(x.size()) + epsilon);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * weight[i];
  return y;
}

inline void add(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// What a bias or a norm that the model does without leaves alone.
inline void add_bias(Vector& x, const std::vector<float>& bias) {
  for (size_t i = 0; i < bias.size(); ++i) x[i] += bias[i];
}
inline Vector post_norm(const Vector& x, const std::vector<float>& weight, double epsilon) {
  return weight.empty() ? x : rms_norm(x, weight, epsilon);
}

inline void rope(double* head, size_t position, int index, const ModelConfig& config) {
  if (index == kNoRope) return;
  const Rope& turn = config.ropes[size_t(index)];
  const size_t half = size_t(config.head_dim) / 2;
  for (size_t i = 0; i < half; ++i) {
    const double angle = double(position) * turn.frequencies[i];
    const size_t a = config.rope_style == RopeStyle::halves ? i : 2 * i;
    const size_t b = config.rope_style == RopeStyle::halves ? i + half : 2 * i + 1;
    const double x = head[a], y = head[b];
    head[a] = turn.magnitude * (x * std::cos(angle) - y * std::sin(angle));
    head[b] = turn.magnitude * (y * std::cos(angle) + x * std::sin(angle));
  }
}

// Norm (where there is one) and rotation of every head of a query or key.
inline void prepare_heads(Vector& x, const std::vector<float>& norm, size_t position, int rope_index,
                          const ModelConfig& config) {
  const size_t head_dim = size_t(config.head_dim);
  for (size_t at = 0; at < x.size(); at += head_dim) {
    if (!norm.empty()) {
      Vector head(head_dim);
      for (size_t i = 0; i < head_dim; ++i) head[i] = x[at + i];
      head = rms_norm(head, norm, config.norm_epsilon);
      for (size_t i = 0; i < head_dim; ++i) x[at + i] = head[i];
    }
    rope(&x[at], position, rope_index, config);
  }
}

// SiLU, or GELU in its tanh form.
inline double activate(double x, Activation activation) {
  if (activation == Activation::silu) return x / (1.0 + std::exp(-x));
  return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

// One query head over the keys and values of its KV head; rows are `stride` apart, positions first .. last
// are seen.
inline void attend(const double* q, const double* k, const double* v, size_t stride, size_t first,
                   size_t last, size_t head_dim, double scale, double* out) {
  Vector weights;
  double largest = -INFINITY;
  for (size_t p = first; p <= last; ++p) {
    double score = 0;
    for (size_t d = 0; d < head_dim; ++d) score += q[d] * k[p * stride + d];
    weights.push_back(score * scale);
    largest = std::max(largest, weights.back());
  }
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - largest);
  for (size_t d = 0; d < head_dim; ++d) out[d] = 0;
  for (size_t p = first; p <= last; ++p)
    for (size_t d = 0; d < head_dim; ++d) out[d] += weights[p - first] / total * v[p * stride + d];
}

// Logits [vocabulary] that follow each of `positions` (sorted) in `tokens`.
inline std::vector<Vector> logits(const Model& model, const Tokens& tokens,
                                  const std::vector<size_t>& positions,
                                  const CacheRounding& round_cache = {}) {
  const ModelConfig& config = model.config;
  const size_t head_dim = size_t(config.head_dim);
  std::vector<Vector> stream;
  for (Token token : tokens) {
    std::vector<float> row(size_t(config.width));
    dequantize_row(model.weights.embedding, token, row.data());
    stream.emplace_back(row.begin(), row.end());
    for (double& value : stream.back()) value *= config.embedding_scale;
  }
  const double scale = config.score_scale > 0 ? config.score_scale : 1 / std::sqrt(double(head_dim));
  std::vector<size_t> every_position(tokens.size());
  std::iota(every_position.begin(), every_position.end(), size_t(0));

  for (size_t l = 0; l < config.layers.size(); ++l) {
    const LayerConfig& layer = config.layers[l];
    const LayerWeights& w = model.weights.layers[l];
    const Linear q_of(w.q), k_of(w.k), v_of(w.v), o_of(w.o), gate_of(w.gate), up_of(w.up), down_of(w.down);
    const size_t heads = size_t(layer.heads), kv_heads = size_t(layer.kv_heads);

    Vector keys, values;
    for (size_t p = 0; p < tokens.size(); ++p) {
      const Vector x = rms_norm(stream[p], w.attention_norm, config.norm_epsilon);
      Vector k = k_of(x);
      Vector v = v_of(x);
      add_bias(k, w.k_bias);
      add_bias(v, w.v_bias);
      prepare_heads(k, w.k_norm, p, layer.rope, config);
      keys.insert(keys.end(), k.begin(), k.end());
      values.insert(values.end(), v.begin(), v.end());
    }
    if (round_cache) {
      round_cache(int(l), true, keys);
      round_cache(int(l), false, values);
    }

    // The last layer's other positions reach nothing.
    for (size_t p : l + 1 == config.layers.size() ? positions : every_position) {
      Vector q = q_of(rms_norm(stream[p], w.attention_norm, config.norm_epsilon));
      add_bias(q, w.q_bias);
      prepare_heads(q, w.q_norm, p, layer.rope, config);
      Vector attended(heads * head_dim);
      const size_t first =
          layer.window > 0 && p + 1 > size_t(layer.window) ? p + 1 - size_t(layer.window) : 0;
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv_head = h / (heads / kv_heads);
        attend(&q[h * head_dim], &keys[kv_head * head_dim], &values[kv_head * head_dim], kv_heads * head_dim,
               first, p, head_dim, scale, &attended[h * head_dim]);
      }
      add(stream[p], post_norm(o_of(attended), w.post_attention_norm, config.norm_epsilon));

      const Vector x = rms_norm(stream[p], w.ff_norm, config.norm_epsilon);
      Vector hidden = gate_of(x);
      const Vector up = up_of(x);
      for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = up[i] * activate(hidden[i], config.activation);
      add(stream[p], post_norm(down_of(hidden), w.post_ff_norm, config.norm_epsilon));
    }
  }

  const Linear head(model.weights.head);
  std::vector<Vector> result;
  for (size_t p : positions)
    result.push_back(head(rms_norm(stream[p], model.weights.output_norm, config.norm_epsilon)));
  return result;
}

inline Matrix zero_matrix(int rows, int cols) {
  return {rows, cols, std::vector<float>(size_t(rows) * size_t(cols))};
}

// Products of unit inputs stay near 1, times `gain`.
inline Tensor random_matrix(int rows, int cols, Random& random, double gain = 1) {
  Matrix matrix = zero_matrix(rows, cols);
  for (float& value : matrix.values) value = float(random.normal() * gain / std::sqrt(double(cols)));
  return tensor_of(matrix);
}

// What an architecture may add to the plain llama layer.
struct Extras {
  bool biases = false, head_norms = false, post_norms = false;
};

// Weights that keep activations near 1, norm weights near 1. No tokenizer.
inline Model random_model(const ModelConfig& config, uint64_t seed, const Extras& extras = {}) {
  Random random(seed);
  const auto vector = [&](bool wanted, int size, double mean, double spread) {
    std::vector<float> values(wanted ? size_t(size) : 0);
    for (float& value : values) value = float(mean + spread * random.normal());
    return values;
  };
  const auto norm = [&](bool wanted, int size) { return vector(wanted, size, 1.0, 0.1); };
  Model model;
  model.name = "random";
  model.config = config;
  model.weights.embedding =
      random_matrix(config.vocabulary, config.width, random, std::sqrt(double(config.width)));
  for (const LayerConfig& layer : config.layers) {
    const int q_rows = layer.heads * config.head_dim, kv_rows = layer.kv_heads * config.head_dim;
    LayerWeights w;
    w.attention_norm = norm(true, config.width);
    w.q = random_matrix(q_rows, config.width, random);
    w.k = random_matrix(kv_rows, config.width, random);
    w.v = random_matrix(kv_rows, config.width, random);
    w.q_bias = vector(extras.biases, q_rows, 0, 1);
    w.k_bias = vector(extras.biases, kv_rows, 0, 1);
    w.v_bias = vector(extras.biases, kv_rows, 0, 1);
    w.q_norm = norm(extras.head_norms, config.head_dim);
    w.k_norm = norm(extras.head_norms, config.head_dim);
    w.o = random_matrix(config.width, q_rows, random);
    w.post_attention_norm = norm(extras.post_norms, config.width);
    w.ff_norm = norm(true, config.width);
    w.gate = random_matrix(layer.ff, config.width, random);
    w.up = random_matrix(layer.ff, config.width, random);
    w.down = random_matrix(config.width, layer.ff, random);
    w.post_ff_norm = norm(extras.post_norms, config.width);
    model.weights.layers.push_back(std::move(w));
  }
  model.weights.output_norm = norm(true, config.width);
  model.weights.head = random_matrix(config.vocabulary, config.width, random);
  model.hash = hash_of(model.config, model.weights);
  return model;
}

}  // namespace kveval::reference
