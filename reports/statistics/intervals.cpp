#include "reports/statistics/intervals.h"

#include <algorithm>
#include <cmath>

namespace kveval {

Interval wilson(size_t successes, size_t trials, double z) {
  if (trials == 0) return {0, 1};
  const double n = static_cast<double>(trials);
  const double p = static_cast<double>(successes) / n;
  const double z2 = z * z;
  const double centre = p + z2 / (2 * n);
  const double half = z * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  const double scale = 1 + z2 / n;
  // Rounding must not move the ends off 0 and 1, where they belong for no and for only successes.
  return {successes == 0 ? 0.0 : std::max(0.0, (centre - half) / scale),
          successes == trials ? 1.0 : std::min(1.0, (centre + half) / scale)};
}

}  // namespace kveval
