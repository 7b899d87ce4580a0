#include "engine/cpu/cost.h"

#include <algorithm>

namespace kveval::cpu {
namespace {

// Keys that the queries at positions 0 .. end see together: position + 1 each, `window` at most where there
// is one.
double keys_seen(size_t end, int window) {
  const double all = double(end), rising = window > 0 ? std::min(all, double(window)) : all;
  return rising * (rising + 1) / 2 + (all - rising) * double(window);
}

}  // namespace

double forward_flops(const ModelConfig& config, size_t first, size_t tokens, size_t wanted) {
  double flops =
      double(tokens) * linear_flops_per_token(config) + double(wanted) * head_flops_per_token(config);
  for (const LayerConfig& layer : config.layers) {
    const bool last = &layer == &config.layers.back();
    const size_t end = first + tokens, begin = last ? end - wanted : first;
    const double keys = keys_seen(end, layer.window) - keys_seen(begin, layer.window);
    flops += 4.0 * layer.heads * config.head_dim * keys;
    if (!last) continue;
    const double q_o_and_ff = 2.0 * layer.heads * config.head_dim + 3.0 * layer.ff;
    flops -= double(tokens - wanted) * 2 * q_o_and_ff * config.width;
  }
  return flops;
}

double cache_bytes_read(std::span<const kv::LayerShape> layers, const Profile& profile, size_t position) {
  double bytes = 0;
  for (size_t layer = 0; layer < layers.size(); layer++) {
    const kv::LayerShape& shape = layers[layer];
    const size_t seen = shape.window > 0 ? std::min(position + 1, size_t(shape.window)) : position + 1;
    const kv::PageLayout layout = kv::page_layout(shape, profile, int(layer), kv::kTileTokens);
    bytes += double(seen) * double(layout.page_bytes) / kv::kTileTokens;
  }
  return bytes;
}

}  // namespace kveval::cpu
