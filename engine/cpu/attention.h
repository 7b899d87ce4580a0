// Causal attention over a coded, paged KV cache, in one absolute order.
//
// A query at position p walks the 64-key tiles at positions 64 i that hold a key it sees, left to right.
// Inside a span of 1,024 keys (16 tiles, at positions 1,024 j) tiles fold one after another with online
// softmax; span states merge left to right. Chunks, pages, threads, forks and SIMD levels only change who
// computes a state, never which states there are. Tiles in which a query sees nothing (before its window) are
// not walked at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"
#include "engine/kv/cache.h"

namespace kveval::cpu {

// Consecutive queries of one sequence.
struct AttentionSegment {
  const uint8_t* const*
      pages;  // the layer's pages by page index (kv::Sequence::pages); keys up to the last query are written
  size_t first_position;  // of the first query
  int tokens;
  const float* q;  // [tokens][heads][head_dim], unscaled
  float* out;      // [tokens][heads][head_dim]
};

struct AttentionShape {
  int heads;
  int window;  // 0: everything before
  const kv::PageLayout* layout;
  double score_scale = 0;  // of query-key products; 0: head_dim^-1/2
};

// Segments that share pages (forks of one prefix) walk the shared tiles together: list them side by side.
class Attention {
 public:
  Attention(const Kernels& kernels, ThreadPool& pool);
  ~Attention();
  // Head sizes 64, 128 and 256; throws Error{usage} for others. Pages behind every query's window are not
  // touched.
  void run(const AttentionShape& shape, std::span<const AttentionSegment> segments);

 private:
  struct State;  // per-thread scratch and span states, kept between runs
  std::unique_ptr<State> state_;
};

}  // namespace kveval::cpu
