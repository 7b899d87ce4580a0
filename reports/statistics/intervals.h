// Confidence intervals for a share.
#pragma once

#include <cstddef>

namespace kveval {

struct Interval {
  double low = 0;
  double high = 1;
};

// The standard normal quantile at 0.975, to double precision: two-sided 95 %.
inline constexpr double kNormal975 = 1.959963984540054;

// Wilson's score interval for `successes` of `trials` (E. B. Wilson, 1927), as shares in [0, 1]. Unlike p +-
// z sd it stays inside [0, 1] and keeps a width at 0 and 1, where needle tests live. No trials: [0, 1].
Interval wilson(size_t successes, size_t trials, double z = kNormal975);

}  // namespace kveval
