#include "engine/model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "engine/random.h"

namespace kveval {
namespace {

TEST(Rope, RowsAreTheRoundedCosinesAndSines) {
  for (int head_dim : {64, 128, 256}) {
    for (double theta : {1e4, 1e5, 1e6}) {
      const RopeTable table = make_rope_table(plain_rope(theta, head_dim), 1 << 20);
      for (size_t first : {0u, 1u, 510u, 8191u, 131070u, 1048573u}) {
        constexpr int kRows = 3;
        const size_t half = size_t(head_dim) / 2;
        std::vector<float> cos(kRows * half), sin(kRows * half);
        rope_rows(table, first, kRows, cos.data(), sin.data());
        for (size_t i = 0; i < cos.size(); ++i) {
          const size_t position = first + i / half, pair = i % half;
          const long double frequency = powl((long double)theta, -2.0L * (long double)pair / head_dim);
          const long double angle = (long double)position * frequency;
          // Half a float32 step of 1, and the angle's own rounding in float64: 2^20 * 2^-52.
          EXPECT_NEAR(cos[i], double(cosl(angle)), 3.1e-8)
              << head_dim << " " << theta << " " << first << " " << i;
          EXPECT_NEAR(sin[i], double(sinl(angle)), 3.1e-8)
              << head_dim << " " << theta << " " << first << " " << i;
        }
      }
    }
  }
}

TEST(Rope, RowsDoNotDependOnHowTheyAreCut) {
  const RopeTable table = make_rope_table(plain_rope(10000, 128), 8192);
  constexpr size_t kRows = 96, kHalf = 64;
  std::vector<float> cos(kRows * kHalf), sin(kRows * kHalf), cos_cut(kRows * kHalf), sin_cut(kRows * kHalf);
  rope_rows(table, 5100, int(kRows), cos.data(), sin.data());
  Random random(1);
  for (size_t row = 0; row < kRows;) {
    const size_t count = std::min(kRows - row, size_t(1 + random.below(17)));
    rope_rows(table, 5100 + row, int(count), &cos_cut[row * kHalf], &sin_cut[row * kHalf]);
    row += count;
  }
  EXPECT_EQ(cos, cos_cut);
  EXPECT_EQ(sin, sin_cut);
}

// Hand-computed from the papers' sentences at the pairs where they differ.
TEST(Rope, ScalingsStretchTheLongWavelengthsAlone) {
  const int head_dim = 64;
  const Rope plain = plain_rope(1e4, head_dim), linear = linear_rope(1e4, head_dim, 4);
  const Rope llama = llama3_rope(1e4, head_dim, 8, 1, 4, 8192);
  const Rope yarn = yarn_rope(1e4, head_dim, {.factor = 4, .original_context = 2048});
  std::vector<float> divisors(32, 1.f);
  divisors[31] = 2.f;
  const Rope divided = divided_rope(1e4, head_dim, divisors);
  for (size_t i = 0; i < 32; ++i) {
    const double frequency = plain.frequencies[i], wavelength = 2 * std::acos(-1.0) / frequency;
    EXPECT_DOUBLE_EQ(linear.frequencies[i], frequency / 4);
    EXPECT_DOUBLE_EQ(divided.frequencies[i], i == 31 ? frequency / 2 : frequency);
    const double s = (8192 / wavelength - 1) / (4 - 1);
    const double expected = wavelength < 8192.0 / 4   ? frequency
                            : wavelength > 8192.0 / 1 ? frequency / 8
                                                      : (1 - s) * frequency / 8 + s * frequency;
    EXPECT_NEAR(llama.frequencies[i], expected, 1e-15 + 1e-13 * expected) << i;
    // Pairs at 2048 / (2 pi r) turns: low = floor(8.07...), high = ceil(20.1...) of d ln(orig / 2 pi r) / 2
    // ln theta.
    const double low = std::floor(64 * std::log(2048 / (32 * 2 * std::acos(-1.0))) / (2 * std::log(1e4)));
    const double high = std::ceil(64 * std::log(2048 / (1 * 2 * std::acos(-1.0))) / (2 * std::log(1e4)));
    const double ramp = std::min(1.0, std::max(0.0, (double(i) - low) / (high - low)));
    EXPECT_NEAR(yarn.frequencies[i], frequency / 4 * ramp + frequency * (1 - ramp), 1e-13 * frequency) << i;
  }
  EXPECT_NEAR(yarn.magnitude, 1 + 0.1 * std::log(4.0), 1e-15);
  EXPECT_EQ(plain.magnitude, 1);

  const RopeTable table = make_rope_table(yarn, 4096);
  std::vector<float> cos(32), sin(32);
  rope_rows(table, 3000, 1, cos.data(), sin.data());
  for (size_t i = 0; i < 32; ++i) EXPECT_NEAR(std::hypot(cos[i], sin[i]), yarn.magnitude, 1e-6) << i;
}

}  // namespace
}  // namespace kveval
