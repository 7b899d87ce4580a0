#include "harness/divergence.h"

#include <algorithm>
#include <limits>

#include "engine/deterministic_math.h"

namespace kveval {

double log_sum_exp(std::span<const float> logits) {
  if (logits.empty()) return -std::numeric_limits<double>::infinity();
  const double top = double(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float logit : logits) sum += det::exp(double(logit) - top);
  return top + det::log(sum);
}

Distribution keep(std::span<const float> logits) {
  return {std::vector<float>(logits.begin(), logits.end()), log_sum_exp(logits)};
}

double kl_divergence(const Distribution& baseline, std::span<const float> arm) {
  const double arm_log_sum = log_sum_exp(arm);
  double sum = 0;
  for (size_t i = 0; i < arm.size(); ++i) {
    const double log_p = double(baseline.logits[i]) - baseline.log_sum;
    const double p = det::exp(log_p);
    // 0 * log 0 is 0 here: a token the baseline excludes says nothing about the arm.
    if (p == 0) continue;
    sum += p * (log_p - (double(arm[i]) - arm_log_sum));
  }
  // Equal distributions may round to a sum just below zero.
  return sum < 0 ? 0 : sum;
}

int first_difference(const Tokens& baseline, const Tokens& arm) {
  const auto [a, b] = std::mismatch(baseline.begin(), baseline.end(), arm.begin(), arm.end());
  if (a == baseline.end() && b == arm.end()) return -1;
  return static_cast<int>(a - baseline.begin());
}

}  // namespace kveval
