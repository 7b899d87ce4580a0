#include "engine/model/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/deterministic_math.h"

namespace kveval {
namespace {

constexpr double kPi = 3.14159265358979323846;

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

Rope plain_rope(double theta, int head_dim) {
  Rope rope;
  for (int i = 0; i < head_dim / 2; ++i)
    rope.frequencies.push_back(det::pow(theta, -2.0 * double(i) / head_dim));
  rope.text = fmt::format("theta {}", theta);
  return rope;
}

Rope linear_rope(double theta, int head_dim, double factor) {
  Rope rope = plain_rope(theta, head_dim);
  for (double& frequency : rope.frequencies) frequency /= factor;
  rope.text += fmt::format(", linear scaling by {}", factor);
  return rope;
}

Rope llama3_rope(double theta, int head_dim, double factor, double low_factor, double high_factor,
                 double original_context) {
  Rope rope = plain_rope(theta, head_dim);
  for (double& frequency : rope.frequencies) {
    const double turns = original_context * frequency / (2 * kPi);  // within the original context
    const double kept = std::clamp((turns - low_factor) / (high_factor - low_factor), 0.0, 1.0);
    frequency = (1 - kept) * frequency / factor + kept * frequency;
  }
  rope.text += fmt::format(", llama-3 scaling by {} beyond {} tokens", factor, original_context);
  return rope;
}

Rope divided_rope(double theta, int head_dim, const std::vector<float>& divisors) {
  Rope rope = plain_rope(theta, head_dim);
  for (size_t i = 0; i < rope.frequencies.size(); ++i) rope.frequencies[i] /= double(divisors.at(i));
  rope.text += ", frequencies divided by the file's rope_freqs";
  return rope;
}

Rope yarn_rope(double theta, int head_dim, const Yarn& yarn) {
  Rope rope = plain_rope(theta, head_dim);
  // The (fractional) pair that turns `turns` times within the original context.
  const auto pair = [&](double turns) {
    return head_dim * det::log(yarn.original_context / (turns * 2 * kPi)) / (2 * det::log(theta));
  };
  const double low = std::max(std::floor(pair(yarn.beta_fast)), 0.0);
  const double high = std::min(std::ceil(pair(yarn.beta_slow)), double(head_dim - 1));
  for (size_t i = 0; i < rope.frequencies.size(); ++i) {
    const double slowed = std::clamp((double(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
    rope.frequencies[i] = rope.frequencies[i] / yarn.factor * slowed + rope.frequencies[i] * (1 - slowed);
  }
  rope.magnitude = yarn.attention_factor > 0 ? yarn.attention_factor : yarn_magnitude(yarn.factor);
  rope.text += fmt::format(", YaRN scaling by {} from {} tokens", yarn.factor, yarn.original_context);
  return rope;
}

double yarn_magnitude(double factor) { return 0.1 * det::log(factor) + 1; }

int yarn_context(const Yarn& yarn, int context) {
  return int(std::clamp(yarn.original_context * yarn.factor, double(context), double(kMaxContext)));
}

RopeTable make_rope_table(const Rope& rope, int context) {
  RopeTable table;
  table.half = rope.frequencies.size();
  const size_t coarse_rows = (size_t(context) + RopeTable::kFineRows - 1) / RopeTable::kFineRows;
  fill(rope.frequencies, RopeTable::kFineRows, 1, table.fine_cos, table.fine_sin);
  fill(rope.frequencies, coarse_rows, RopeTable::kFineRows, table.coarse_cos, table.coarse_sin);
  for (double& cos : table.coarse_cos) cos *= rope.magnitude;
  for (double& sin : table.coarse_sin) sin *= rope.magnitude;
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
