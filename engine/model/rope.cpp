#include "engine/model/rope.h"

#include "engine/deterministic_math.h"

namespace kveval {

RopeTable make_rope_table(const ModelConfig& config) {
  RopeTable table;
  for (int i = 0; i < config.head_dim / 2; ++i)
    table.frequencies.push_back(det::pow(config.rope_theta, -2.0 * i / config.head_dim));
  return table;
}

void rope_rows(const RopeTable& table, size_t first, int count, float* cos, float* sin) {
  for (int row = 0; row < count; ++row) {
    const double position = double(first + size_t(row));
    for (double frequency : table.frequencies) {
      const det::SinCos turn = det::sin_cos(position * frequency);
      *cos++ = float(turn.cos);
      *sin++ = float(turn.sin);
    }
  }
}

}  // namespace kveval
