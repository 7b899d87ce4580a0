// The one inner loop of matrix products and of attention with many rows: a small block of outputs in
// registers, each a single chain of fused multiply-adds in ascending k.
//
// What it multiplies are dwords: floats or, in *_bf16.cpp, pairs of bfloat16 (bf16_pairs.h), two steps of a
// chain each.
#pragma once

#include "engine/cpu/simd.h"

namespace kveval::KVEVAL_LEVEL {

// Rows x vectors in registers: 12 x 2 zmm (24 accumulators, 2 panel vectors, 1 broadcast of 32) or 6 x 1 pair
// of ymm (12, 2 and 1 of 16).
#ifdef __AVX512F__
inline constexpr int kMicroRows = 12, kMicroVectors = 2;
#else
inline constexpr int kMicroRows = 6, kMicroVectors = 1;
#endif

// x * w + sum.
KVEVAL_INLINE V multiply_add(V x, V w, V sum) {
#ifdef __AVX512BF16__
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)x.v, (__m512bh)w.v)};
#else
  return fma(x, w, sum);
#endif
}

// sum[r][v] += a[r * AStride + k] * b[v * b_stride + 16 k ..], k = 0 .. depth - 1. AStride is a constant so
// that the broadcasts need no pointer a row. each(k) may prefetch. The unroll counts must not lie below the
// trip counts: the accumulators would live in memory (0.27 of peak instead of 0.95).
template <size_t AStride, int Rows, int Vectors, class Each>
KVEVAL_INLINE void chain(V (&sum)[Rows][Vectors], const float* a, const float* b, size_t b_stride, int depth,
                         Each each) {
  static_assert(Rows <= 12 && Vectors <= 4);
#pragma GCC unroll 2
  for (int k = 0; k < depth; k++, a++, b += 16) {
    each(k);
    V w[Vectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) w[v] = load(b + v * b_stride);
#pragma GCC unroll 12
    for (size_t r = 0; r < Rows; r++) {
      const V x = splat(a[r * AStride]);
#pragma GCC unroll 4
      for (size_t v = 0; v < Vectors; v++) sum[r][v] = multiply_add(x, w[v], sum[r][v]);
    }
  }
}

}  // namespace kveval::KVEVAL_LEVEL
