// Rotary position embedding: the angle of pair i at a position is position * frequency i, which is
// theta^(-2i / head_dim) unless the model stretches its context.
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
  std::vector<double> coarse_cos, coarse_sin;  // [ceil(context / kFineRows)][half], times the magnitude
};

// Frequencies theta^(-2i / head_dim), and what models make of them to reach further than they were trained.
Rope plain_rope(double theta, int head_dim);
// Positions divided by `factor`.
Rope linear_rope(double theta, int head_dim, double factor);
// Llama 3.1: wavelengths beyond original_context / low_factor are stretched by `factor`, those below
// original_context / high_factor are left alone, with a smooth step between.
Rope llama3_rope(double theta, int head_dim, double factor, double low_factor, double high_factor,
                 double original_context);
// Every frequency divided by its own number: what GGUF files store for Llama 3.1 ("rope_freqs").
Rope divided_rope(double theta, int head_dim, const std::vector<float>& divisors);

// YaRN (Peng et al., 2023): pairs that turn more than beta_fast times within original_context are left alone,
// those that turn less than beta_slow times are slowed by `factor`, and a linear ramp over the pair's number
// joins them; every pair becomes attention_factor times as long.
struct Yarn {
  double factor = 1;
  double original_context = 0;
  double beta_fast = 32, beta_slow = 1;
  double attention_factor = 0;  // 0: yarn_magnitude(factor)
};
Rope yarn_rope(double theta, int head_dim, const Yarn& yarn);
double yarn_magnitude(double factor);  // 0.1 ln(factor) + 1
// What a model of `context` reaches with it: some checkpoints state the length before the stretch, some the
// one behind it.
int yarn_context(const Yarn& yarn, int context);

RopeTable make_rope_table(const Rope& rope, int context);

// Writes cosines and sines of positions first .. first + count, each [count][head_dim / 2].
// first + count <= context.
void rope_rows(const RopeTable& table, size_t first, int count, float* cos, float* sin);

}  // namespace kveval
