// A model's tensors as its file (or builder) gives them, before an engine repacks them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/text/tokenizer.h"

namespace kveval {

// Row-major [rows][cols]; y = W x takes cols inputs to rows outputs.
struct Matrix {
  int rows = 0, cols = 0;
  std::vector<float> values;
  float* row(int r) { return values.data() + size_t(r) * size_t(cols); }
  const float* row(int r) const { return values.data() + size_t(r) * size_t(cols); }
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [width]
  Matrix q;                           // [heads * head_dim][width]
  Matrix k, v;                        // [kv_heads * head_dim][width]
  Matrix o;                           // [width][heads * head_dim]
  std::vector<float> ff_norm;         // [width]
  Matrix gate, up;                    // [ff][width]
  Matrix down;                        // [width][ff]
};

struct Weights {
  Matrix embedding;  // [vocabulary][width]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [width]
  Matrix head;                     // [vocabulary][width]
};

struct Model {
  std::string name;  // canonical specification
  std::string hash;  // XXH3-128 of configuration and weights, 32 hex digits
  ModelConfig config;
  Weights weights;
  std::shared_ptr<const Tokenizer> tokenizer;
};

// Throws Error{bad_file} naming the first tensor whose shape does not follow from the configuration.
void check_shapes(const Model& model);

// What Model::hash holds: changes with any bit of the configuration or of a weight.
std::string hash_of(const ModelConfig& config, const Weights& weights);

}  // namespace kveval
