#include "engine/model/rope.h"

#include "engine/deterministic_math.h"

namespace kveval {
namespace {

// Rows of positions 0, step, 2 * step, ...
void fill(const std::vector<double>& frequencies, size_t rows, size_t step, std::vector<double>& cos,
          std::vector<double>& sin) {
  cos.reserve(rows * frequencies.size());
  sin.reserve(rows * frequencies.size());
  for (size_t row = 0; row < rows; ++row) {
    for (double frequency : frequencies) {
      const det::SinCos turn = det::sin_cos(double(row * step) * frequency);
      cos.push_back(turn.cos);
      sin.push_back(turn.sin);
    }
  }
}

}  // namespace

RopeTable make_rope_table(const ModelConfig& config) {
  std::vector<double> frequencies(size_t(config.head_dim) / 2);  // radians per token
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = det::pow(config.rope_theta, -2.0 * double(i) / config.head_dim);
  RopeTable table;
  table.half = frequencies.size();
  const size_t coarse_rows = (size_t(config.context) + RopeTable::kFineRows - 1) / RopeTable::kFineRows;
  fill(frequencies, RopeTable::kFineRows, 1, table.fine_cos, table.fine_sin);
  fill(frequencies, coarse_rows, RopeTable::kFineRows, table.coarse_cos, table.coarse_sin);
  return table;
}

void rope_rows(const RopeTable& table, size_t first, int count, float* cos, float* sin) {
  for (size_t position = first; position < first + size_t(count); ++position) {
    const size_t coarse = position / RopeTable::kFineRows * table.half;
    const size_t fine = position % RopeTable::kFineRows * table.half;
    const double *cos_a = table.coarse_cos.data() + coarse, *sin_a = table.coarse_sin.data() + coarse;
    const double *cos_b = table.fine_cos.data() + fine, *sin_b = table.fine_sin.data() + fine;
    for (size_t i = 0; i < table.half; ++i) {
      cos[i] = float(cos_a[i] * cos_b[i] - sin_a[i] * sin_b[i]);
      sin[i] = float(sin_a[i] * cos_b[i] + cos_a[i] * sin_b[i]);
    }
    cos += table.half;
    sin += table.half;
  }
}

}  // namespace kveval
