// What a decoder-only transformer looks like: enough to run its forward pass and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kveval {

enum class RopeStyle {
  halves,       // pairs (i, i + head_dim/2): "NEOX"
  interleaved,  // pairs (2i, 2i + 1): "NORM"
};

// How one kind of layer rotates queries and keys: pair i turns by position * frequencies[i]. Made by
// engine/model/rope.h, scaling included.
struct Rope {
  std::vector<double> frequencies;  // [head_dim / 2], radians a token
  double magnitude = 1;             // the rotated pair is this many times as long: YaRN's attention factor
  std::string text;                 // for people: "theta 10000, linear scaling by 8"
};

// The largest that a checkpoint may ask for: far above real models. What is allocated from these numbers
// alone stays small: 67 MB of RoPE tables at most.
inline constexpr int kMaxLayers = 1024, kMaxHeads = 1024;
inline constexpr int kMaxWidth = 1 << 17, kMaxFeedForward = 1 << 20, kMaxHeadDim = 1 << 17;
inline constexpr int kMaxContext = 1 << 23;  // tokens: a pair that turns by 1 a token reaches kLargestAngle

// What the attention kernels are made for.
constexpr bool is_known_head_dim(int64_t size) { return size == 64 || size == 128 || size == 256; }

inline constexpr int kNoRope = -1;

struct LayerConfig {
  int heads = 1;
  int kv_heads = 1;  // heads % kv_heads == 0
  int window = 0;    // 0: full attention; else the last `window` positions, itself included
  int rope = 0;      // index into ModelConfig::ropes; kNoRope: no position information (NoPE)
  int ff = 0;        // feed-forward width
};

enum class Activation { silu, gelu_tanh };

struct ModelConfig {
  std::string architecture;  // "llama", "qwen2", "qwen3", "gemma3"
  int width = 0;             // residual stream, d_model
  int head_dim = 0;          // the same in every layer: 64, 128 or 256
  int vocabulary = 0;
  int context = 0;  // longest sequence, tokens
  float norm_epsilon = 1e-6f;
  RopeStyle rope_style = RopeStyle::halves;
  std::vector<Rope> ropes;
  Activation activation = Activation::silu;  // of the feed-forward gate
  float embedding_scale = 1;                 // token rows are multiplied by this: sqrt(width) in Gemma
  double score_scale = 0;                    // of query-key products; 0: head_dim^-1/2
  std::vector<LayerConfig> layers;
};

// Throws Error{bad_file} naming `path` when a number of the configuration leaves what the arithmetic can
// carry, whichever keys it was made of: an angle at the end of the context is beyond kLargestAngle, a score
// scale is infinite in float32. Such a model would answer with NaN.
void check_numbers(const std::string& path, const ModelConfig& config);

// Multiply-adds x 2 of everything linear for one token: all layers without the head, and the head alone.
double linear_flops_per_token(const ModelConfig& config);
double head_flops_per_token(const ModelConfig& config);

}  // namespace kveval
