// Rotary position embedding: the angle of pair i at a position is position * theta^(-2i / head_dim).
//
// A position is split as kFineRows * coarse + fine. Cosines and sines of both parts' angles come from
// engine/deterministic_math.h in float64; the angle sum is taken in float64 (error below 1e-15) and rounded
// once, to float32. So a row depends on its position alone and costs 4 multiplications a pair instead of a
// sine (0.1 us a row at head size 256, not 4), while the table for 262,144 positions takes 2 MB instead of
// 268.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/model/config.h"

namespace kveval {

struct RopeTable {
  static constexpr size_t kFineRows = 512;
  size_t half = 0;                             // head_dim / 2
  std::vector<double> fine_cos, fine_sin;      // [kFineRows][half]
  std::vector<double> coarse_cos, coarse_sin;  // [ceil(context / kFineRows)][half]
};

RopeTable make_rope_table(const ModelConfig& config);

// Writes cosines and sines of positions first .. first + count, each [count][head_dim / 2].
// first + count <= config.context.
void rope_rows(const RopeTable& table, size_t first, int count, float* cos, float* sin);

}  // namespace kveval
