#include "reports/statistics/clustered.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace kveval {

double sign_flip_p(std::span<const int64_t> net_losses) {
  // With T the total of the |D| that keep a plus sign, the signed sum is 2 T - R (R: the total of all |D|).
  // So the tail is P(T >= losses), losses being the total of the positive D, and T's distribution has R + 1
  // points.
  size_t losses = 0;
  std::vector<size_t> sizes;
  for (const int64_t d : net_losses) {
    if (d == 0) continue;
    sizes.push_back(static_cast<size_t>(d < 0 ? -d : d));
    if (d > 0) losses += sizes.back();
  }
  if (sizes.empty()) return 1;

  std::vector<double> mass(std::accumulate(sizes.begin(), sizes.end(), size_t{0}) + 1, 0.0);
  mass[0] = 1;
  size_t reach = 0;  // the largest T that has mass so far
  for (const size_t size : sizes) {
    reach += size;
    // Halving is exact, so up to 52 clusters every mass is a whole number of 2^-clusters: no rounding at all.
    for (size_t t = reach + 1; t-- > 0;) mass[t] = 0.5 * (mass[t] + (t >= size ? mass[t - size] : 0.0));
  }
  // From the far end: small terms first.
  double p = 0;
  for (size_t t = mass.size(); t-- > losses;) p += mass[t];
  return std::min(p, 1.0);
}

std::vector<double> holm_adjusted(std::span<const double> p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> adjusted(p.size());
  double so_far = 0;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    const double scaled = p[order[rank]] * static_cast<double>(p.size() - rank);
    so_far = std::min(1.0, std::max(so_far, scaled));
    adjusted[order[rank]] = so_far;
  }
  return adjusted;
}

}  // namespace kveval
