// A model as its file (or builder) gives it, before an engine repacks the matrices.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/model/config.h"
#include "engine/model/tensor.h"
#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"

namespace kveval {

// Matrices are tensors of shape [rows, cols]: y = W x takes cols inputs to rows outputs. Vectors are float32;
// those that an architecture does without are empty.
struct LayerWeights {
  std::vector<float> attention_norm;         // [width]
  Tensor q;                                  // [heads * head_dim, width]
  Tensor k, v;                               // [kv_heads * head_dim, width]
  std::vector<float> q_bias{};               // [heads * head_dim]: qwen2
  std::vector<float> k_bias{}, v_bias{};     // [kv_heads * head_dim]
  std::vector<float> q_norm{}, k_norm{};     // [head_dim], RMSNorm of every head ahead of RoPE: qwen3, gemma3
  Tensor o;                                  // [width, heads * head_dim]
  std::vector<float> post_attention_norm{};  // [width], of what attention adds to the stream: gemma3
  std::vector<float> ff_norm;                // [width]
  Tensor gate, up;                           // [ff, width]
  Tensor down;                               // [width, ff]
  std::vector<float> post_ff_norm{};         // [width]: gemma3
};

// All of a layer's parts, absent vectors too, always in this order.
std::array<const Tensor*, 7> matrices_of(const LayerWeights& layer);
std::array<const std::vector<float>*, 9> vectors_of(const LayerWeights& layer);

struct Weights {
  Tensor embedding;  // [vocabulary, width]
  std::vector<LayerWeights> layers;
  std::vector<float> output_norm;  // [width]
  Tensor head;                     // [vocabulary, width]; tied: the same data as the embedding
};

// FP8 scales that a checkpoint brings for its KV cache: a stored code times the scale is the value.
struct CacheScales {
  std::vector<float> k, v;  // [layers], both empty when the checkpoint has none
  std::string names;        // as the checkpoint spells them: "self_attn.k_scale, self_attn.v_scale"
};

struct Model {
  std::string name;  // canonical specification: runs of the same model have the same
  std::string hash;  // XXH3-128 of configuration and weights, 32 hex digits
  ModelConfig config;
  Weights weights;
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat = plain_chat();
  std::optional<Error> chat_error{};  // why the checkpoint's template is not understood; `chat` is then plain
  CacheScales cache_scales{};
  TensorSet files{};  // what the tensors of a checkpoint view; empty for computed weights
};

// A float32 tensor that owns its values. values.size() == rows * cols.
Tensor float_tensor(int rows, int cols, std::vector<float> values);

// All values of a float vector or matrix of any type.
std::vector<float> floats_of(const Tensor& tensor);

bool has_tied_head(const Weights& weights);

// Fills in chat, or chat_error. `jinja` is the template that the file at `path` holds.
void set_chat(Model& model, const Vocabulary& vocabulary, std::string_view jinja, const std::string& path);

// Throws Error{bad_file} naming the first tensor whose shape does not follow from the configuration.
void check_shapes(const Model& model);

// What Model::hash holds: changes with any bit of the configuration or of a weight.
std::string hash_of(const ModelConfig& config, const Weights& weights);

// Ends the loading of a checkpoint: check_numbers(), check_shapes(), check_finite(), the hash, and letting go
// of the files' pages, all of which hashing has read. Throws Error{bad_file}, also when a file lost bytes
// meanwhile.
void finish_loading(Model& model);

}  // namespace kveval
