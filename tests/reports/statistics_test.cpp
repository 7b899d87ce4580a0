#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reports/statistics/clustered.h"
#include "reports/statistics/intervals.h"

namespace kveval {
namespace {

// Small and defined everywhere: the tests must see the same cases on every machine.
struct Lcg {
  uint64_t state;
  uint64_t below(uint64_t n) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % n;
  }
};

// The definition, by counting all 2^G sign vectors.
double sign_flip_by_enumeration(const std::vector<int64_t>& d) {
  std::vector<int64_t> nonzero;
  for (int64_t x : d) {
    if (x != 0) nonzero.push_back(std::abs(x));
  }
  int64_t observed = 0;
  for (int64_t x : d) observed += x;
  uint64_t reached = 0;
  const uint64_t all = uint64_t{1} << nonzero.size();
  for (uint64_t signs = 0; signs < all; ++signs) {
    int64_t sum = 0;
    for (size_t g = 0; g < nonzero.size(); ++g) sum += (signs >> g & 1) != 0 ? nonzero[g] : -nonzero[g];
    reached += sum >= observed;
  }
  return static_cast<double>(reached) / static_cast<double>(all);
}

double choose(int n, int k) {
  double result = 1;
  for (int i = 1; i <= k; ++i) result = result * (n - k + i) / i;
  return result;
}

double mcnemar_one_sided(int losses, int gains) {
  double tail = 0;
  for (int k = losses; k <= losses + gains; ++k) tail += choose(losses + gains, k);
  return tail / std::pow(2.0, losses + gains);
}

TEST(Wilson, KnownValues) {
  // Newcombe (1998), Statistics in Medicine 17:857, table I, score interval without continuity correction.
  const struct {
    size_t x, n;
    double low, high;
  } cases[] = {
      {81, 263, 0.2553, 0.3662}, {15, 148, 0.0624, 0.1605}, {0, 20, 0.0000, 0.1611}, {1, 29, 0.0061, 0.1718}};
  for (const auto& c : cases) {
    const Interval interval = wilson(c.x, c.n);
    EXPECT_NEAR(interval.low, c.low, 5e-5) << c.x << "/" << c.n;
    EXPECT_NEAR(interval.high, c.high, 5e-5) << c.x << "/" << c.n;
  }
}

TEST(Wilson, EndsSolveTheScoreEquation) {
  // The defining property: |p - x/n| = z sqrt(p (1 - p) / n) at both ends.
  for (size_t n = 1; n <= 60; ++n) {
    for (size_t x = 0; x <= n; ++x) {
      const Interval interval = wilson(x, n);
      const double share = static_cast<double>(x) / static_cast<double>(n);
      for (const double p : {interval.low, interval.high}) {
        EXPECT_NEAR(std::fabs(p - share), kNormal975 * std::sqrt(p * (1 - p) / static_cast<double>(n)),
                    1e-12);
      }
      EXPECT_LE(interval.low, share);
      EXPECT_GE(interval.high, share);
    }
  }
  EXPECT_EQ(wilson(0, 7).low, 0.0);
  EXPECT_EQ(wilson(7, 7).high, 1.0);
}

TEST(Wilson, QuantileAndEmpty) {
  EXPECT_NEAR(0.5 * std::erfc(-kNormal975 / std::sqrt(2.0)), 0.975, 1e-15);
  EXPECT_EQ(wilson(0, 0).low, 0.0);
  EXPECT_EQ(wilson(0, 0).high, 1.0);
}

TEST(SignFlip, KnownValues) {
  // Five haystacks losing three each, two gaining one: 4 of the 128 sign vectors reach 13, while counting
  // questions as independent would give p = 0.0012.
  EXPECT_EQ(sign_flip_p(std::vector<int64_t>{3, 3, 3, 3, 3, -1, -1}), 4.0 / 128);
  EXPECT_NEAR(mcnemar_one_sided(15, 2), 0.0012, 5e-5);
  // 16 losses and 6 gains, one a haystack: half the two-sided exact McNemar value 0.052479.
  std::vector<int64_t> singles(16, 1);
  singles.insert(singles.end(), 6, -1);
  EXPECT_NEAR(sign_flip_p(singles), 0.052479 / 2, 5e-7);
}

TEST(SignFlip, NothingFlippedIsNoEvidence) {
  EXPECT_EQ(sign_flip_p({}), 1.0);
  EXPECT_EQ(sign_flip_p(std::vector<int64_t>{0, 0, 0}), 1.0);
}

TEST(SignFlip, AgreesWithEnumeration) {
  Lcg random{7};
  for (int round = 0; round < 400; ++round) {
    std::vector<int64_t> d(random.below(13));
    for (int64_t& x : d) x = static_cast<int64_t>(random.below(11)) - 5;
    // Whole numbers of 2^-G on both sides: equal to the last bit.
    EXPECT_EQ(sign_flip_p(d), sign_flip_by_enumeration(d));
  }
}

TEST(SignFlip, SingletonsAreExactMcNemar) {
  for (int losses = 0; losses <= 20; ++losses) {
    for (int gains = 0; gains <= 20; ++gains) {
      std::vector<int64_t> d(losses, 1);
      d.insert(d.end(), gains, -1);
      EXPECT_NEAR(sign_flip_p(d), mcnemar_one_sided(losses, gains), 1e-14) << losses << " " << gains;
    }
  }
}

TEST(SignFlip, ManyClustersStayAProbability) {
  EXPECT_EQ(sign_flip_p(std::vector<int64_t>(60, 8)), std::pow(0.5, 60));
  EXPECT_EQ(sign_flip_p(std::vector<int64_t>(60, -8)), 1.0);
  std::vector<int64_t> even(3000);
  for (size_t i = 0; i < even.size(); ++i) even[i] = i % 2 == 0 ? 1 : -1;
  // P(Bin(3000, 1/2) >= 1500) = 1/2 + P(= 1500) / 2, about 1 / sqrt(pi 1500).
  EXPECT_NEAR(sign_flip_p(even), 0.5 + 0.5 / std::sqrt(M_PI * 1500), 1e-5);
}

TEST(SignFlip, KeepsItsLevel) {
  // Under the null, haystacks with any sizes and fair signs: P(p <= alpha) <= alpha, by enumerating all
  // signs.
  const std::vector<int64_t> sizes{1, 1, 2, 2, 3, 4, 4, 1, 2};
  for (const double alpha : {0.01, 0.05, 0.2}) {
    int rejected = 0;
    const int all = 1 << sizes.size();
    for (int signs = 0; signs < all; ++signs) {
      std::vector<int64_t> d = sizes;
      for (size_t g = 0; g < d.size(); ++g) {
        if ((signs >> g & 1) != 0) d[g] = -d[g];
      }
      rejected += sign_flip_p(d) <= alpha;
    }
    EXPECT_LE(rejected, alpha * all);
    EXPECT_GT(rejected, 0);
  }
}

TEST(Holm, StepsDown) {
  // Sorted .01 .02 .03 .04: 4 x .01 = .04, 3 x .02 = .06, then 2 x .03 = .06 and .04 may not fall below it.
  const std::vector<double> adjusted = holm_adjusted(std::vector<double>{0.04, 0.01, 0.03, 0.02});
  const std::vector<double> expected{0.06, 0.04, 0.06, 0.06};
  ASSERT_EQ(adjusted.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(adjusted[i], expected[i], 1e-15);
  EXPECT_EQ(holm_adjusted(std::vector<double>{0.9, 0.8}), (std::vector<double>{1, 1}));
  EXPECT_EQ(holm_adjusted(std::vector<double>{0.2}), std::vector<double>{0.2});
  EXPECT_TRUE(holm_adjusted({}).empty());
}

}  // namespace
}  // namespace kveval
