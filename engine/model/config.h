// What a decoder-only transformer looks like: enough to run its forward pass and nothing else.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace kveval {

enum class RopeStyle {
  halves,       // pairs (i, i + head_dim/2): "NEOX"
  interleaved,  // pairs (2i, 2i + 1): "NORM"
};

struct LayerConfig {
  int heads = 1;
  int kv_heads = 1;  // heads % kv_heads == 0
  int window = 0;    // 0: full attention; else the last `window` positions, itself included
  bool rope = true;  // false: no position information (NoPE)
  int ff = 0;        // feed-forward width
};

struct ModelConfig {
  std::string architecture;  // "llama"
  int width = 0;             // residual stream, d_model
  int head_dim = 0;          // the same in every layer: 64, 128 or 256
  int vocabulary = 0;
  int context = 0;  // longest sequence, tokens
  float norm_epsilon = 1e-6f;
  double rope_theta = 10000.0;
  RopeStyle rope_style = RopeStyle::halves;
  std::vector<LayerConfig> layers;
};

// Multiply-adds x 2 of everything linear for one token: all layers without the head, and the head alone.
double linear_flops_per_token(const ModelConfig& config);
double head_flops_per_token(const ModelConfig& config);

}  // namespace kveval
