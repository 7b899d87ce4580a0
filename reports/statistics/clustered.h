// Tests for paired right/wrong answers that come in clusters: the questions on one haystack stand or fall
// together, so the haystack, not the question, is the unit of evidence.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kveval {

// Exact one-sided sign-flip test that losses exceed gains. `net_losses` holds, for each cluster, its losses
// minus its gains. If the cache changed nothing on balance, each cluster's sum is as likely to have the
// opposite sign, so
//   p = P(sum of e_g |D_g| >= sum of D_g), e_g = +-1 independent and fair,
// by convolution over the sum's integer values: O(clusters x total |D|) time. Clusters of one question make
// it the exact one-sided McNemar test. Without any loss or gain p = 1.
double sign_flip_p(std::span<const int64_t> net_losses);

// Holm's step-down adjustment (1979): one entry for each p, in the same order. Comparing the adjusted values
// with alpha keeps the chance of any false alarm among them at or below alpha.
std::vector<double> holm_adjusted(std::span<const double> p);

}  // namespace kveval
