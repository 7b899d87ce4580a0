// The branches of a group behind their shared prefix, advanced together.
//
// Each is a small state machine: tokens waiting to be fed, and what to do with the logits they yield. A step
// takes the waiting tokens of all live branches into one forward pass; a branch alone goes through the same
// states.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "engine/cpu/forward.h"
#include "engine/engine.h"
#include "engine/kv/cache.h"

namespace kveval::cpu {

struct BranchLimits {
  size_t context;         // tokens a sequence may hold
  int chunk_tokens;       // rows of one forward pass
  int max_branches;       // live at once; 0: all
  double prefix_seconds;  // for Timing
};

struct BranchResults {
  std::vector<std::vector<CacheDiagnostic>> diagnostics;  // of each branch
  bool finite_logits = true;                              // whether every reply was made from numbers
};

// Runs every branch of `group` on forks of `prefix`. `fed` is called after each forward pass with its number
// of tokens and may throw to stop.
BranchResults run_branches(const PromptGroup& group, const Decoding& decoding, const Tokenizer* tokenizer,
                           const Kernels& kernels, Forward& forward, kv::Cache& cache,
                           const kv::Sequence& prefix, const BranchLimits& limits, const Events& events,
                           const std::function<void(size_t tokens)>& fed);

}  // namespace kveval::cpu
