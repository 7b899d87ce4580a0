// How far one arm's distribution of the next token lies from the baseline's.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/text/tokenizer.h"

namespace kveval {

// log(sum(exp(logits))), summed in index order in double: the same bits everywhere.
double log_sum_exp(std::span<const float> logits);

// One answer position of the baseline, kept while the other arms of its group run: vocabulary x 4 bytes.
struct Distribution {
  std::vector<float> logits;
  double log_sum = 0;
};
Distribution keep(std::span<const float> logits);

// KL(baseline || arm) in nats, >= 0; NaN when either holds a NaN. Both have the same length.
double kl_divergence(const Distribution& baseline, std::span<const float> arm);

// Index of the first token that differs, the shorter one's length when it is the other's beginning; -1:
// equal.
int first_difference(const Tokens& baseline, const Tokens& arm);

}  // namespace kveval
