#include "harness/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/random.h"

namespace kveval {
namespace {

std::vector<float> logits_of(const std::vector<double>& probabilities, double shift = 0) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + shift));
  return logits;
}

TEST(Divergence, ByHand) {
  const Distribution base = keep(logits_of({0.5, 0.25, 0.125, 0.125}));
  EXPECT_NEAR(base.log_sum, 0, 1e-7);
  // 1/2 ln 4 + 1/4 ln 1/2 + 1/8 ln 1/2 = 5/8 ln 2; a shift of all logits changes nothing.
  EXPECT_NEAR(kl_divergence(base, logits_of({0.125, 0.5, 0.25, 0.125}, 3.0)), 0.625 * std::log(2.0), 1e-6);
  EXPECT_EQ(kl_divergence(base, base.logits), 0);
}

TEST(Divergence, IsGibbs) {
  Random random(1);
  for (int round = 0; round < 200; ++round) {
    const size_t n = 2 + random.below(300);
    std::vector<float> a(n), b(n);
    for (size_t i = 0; i < n; ++i) {
      a[i] = static_cast<float>(10 * random.normal());
      b[i] = a[i] + static_cast<float>(random.normal() * std::pow(10.0, -double(random.below(9))));
    }
    // The oracle: probabilities first, in long double.
    long double sum_a = 0, sum_b = 0, expected = 0;
    for (size_t i = 0; i < n; ++i) {
      sum_a += expl(a[i]);
      sum_b += expl(b[i]);
    }
    for (size_t i = 0; i < n; ++i)
      expected += expl(a[i]) / sum_a * logl((expl(a[i]) / sum_a) / (expl(b[i]) / sum_b));
    const double kl = kl_divergence(keep(a), b);
    EXPECT_GE(kl, 0);
    EXPECT_NEAR(kl, static_cast<double>(expected), 1e-12 + 1e-9 * std::abs(static_cast<double>(expected)));
  }
}

TEST(Divergence, Extremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> excludes = {0, -kInfinity}, even = {0, 0};
  EXPECT_NEAR(kl_divergence(keep(excludes), even), std::log(2.0), 1e-12);
  EXPECT_EQ(kl_divergence(keep(even), excludes), double{kInfinity});
  EXPECT_TRUE(std::isnan(kl_divergence(keep(even), std::vector<float>{NAN, 0})));
  const std::vector<float> huge = {3e38F, -3e38F};
  EXPECT_EQ(kl_divergence(keep(huge), huge), 0);
}

TEST(Divergence, FirstDifference) {
  EXPECT_EQ(first_difference({}, {}), -1);
  EXPECT_EQ(first_difference({1, 2, 3}, {1, 2, 3}), -1);
  EXPECT_EQ(first_difference({1, 2, 3}, {1, 4, 3}), 1);
  EXPECT_EQ(first_difference({1, 2, 3}, {1, 2}), 2);
  EXPECT_EQ(first_difference({}, {9}), 0);
}

}  // namespace
}  // namespace kveval
