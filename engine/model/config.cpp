#include "engine/model/config.h"

#include <fmt/format.h>

#include <cmath>

#include "engine/deterministic_math.h"
#include "engine/model/file_error.h"

namespace kveval {
namespace {

bool is_positive_float(double value) { return std::isfinite(float(value)) && float(value) > 0; }

void check_rope(const std::string& path, const Rope& rope, int context) {
  if (!is_positive_float(rope.magnitude))
    throw file_error(path, fmt::format("RoPE ({}) makes pairs {} times as long", rope.text, rope.magnitude));
  for (const double frequency : rope.frequencies)
    if (!(frequency >= 0 && frequency * context <= det::kLargestAngle))
      throw file_error(
          path, fmt::format("RoPE ({}) turns a pair by {} radians a token: over {} tokens more than {}",
                            rope.text, frequency, context, det::kLargestAngle));
}

}  // namespace

void check_numbers(const std::string& path, const ModelConfig& config) {
  if (!is_positive_float(double(config.norm_epsilon)))
    throw file_error(path, fmt::format("the epsilon of its norms is {}", config.norm_epsilon));
  if (config.score_scale != 0 && !is_positive_float(config.score_scale))
    throw file_error(path, fmt::format("attention scores are scaled by {}", config.score_scale));
  for (const Rope& rope : config.ropes) check_rope(path, rope, config.context);
}

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

}  // namespace kveval
