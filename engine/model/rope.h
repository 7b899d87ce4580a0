// Rotary position embedding: the angle of pair i at a position is position * theta^(-2i / head_dim), computed
// in float64 by engine/deterministic_math.h; its cosine and sine are rounded once, to float32.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/model/config.h"

namespace kveval {

struct RopeTable {
  std::vector<double> frequencies;  // [head_dim / 2], radians per token
};

RopeTable make_rope_table(const ModelConfig& config);

// Writes cosines and sines of positions first .. first + count, each [count][head_dim / 2]. Rows are computed
// when asked for, because a table of 131,072 positions for head size 256 would be 134 MB. Costs about 5 us a
// row there. Positions end at 2^23.
void rope_rows(const RopeTable& table, size_t first, int count, float* cos, float* sin);

}  // namespace kveval
