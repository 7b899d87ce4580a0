#include "engine/model/config.h"

namespace kveval {

double linear_flops_per_token(const ModelConfig& config) {
  double multiply_adds = 0;
  for (const LayerConfig& layer : config.layers) {
    const double attention_rows =
        (2.0 * layer.heads + 2.0 * layer.kv_heads) * config.head_dim;  // q, o and k, v
    multiply_adds += (attention_rows + 3.0 * layer.ff) * config.width;
  }
  return 2.0 * multiply_adds;
}

double head_flops_per_token(const ModelConfig& config) {
  return 2.0 * double(config.vocabulary) * double(config.width);
}

double parameters(const ModelConfig& config, bool tied_head) {
  const double table = double(config.vocabulary) * double(config.width);
  return linear_flops_per_token(config) / 2 + (tied_head ? table : 2 * table);
}

}  // namespace kveval
