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
      ModelConfig config;
      config.head_dim = head_dim;
      config.rope_theta = theta;
      config.context = 1 << 20;
      const RopeTable table = make_rope_table(config);
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
  ModelConfig config;
  config.head_dim = 128;
  config.context = 8192;
  const RopeTable table = make_rope_table(config);
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

}  // namespace
}  // namespace kveval
