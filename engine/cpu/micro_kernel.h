// The one inner loop of matrix products and of attention with many rows: a small block of outputs in
// registers, each a single chain of fused multiply-adds in ascending k.
//
// What it multiplies are dwords: floats or, in *_bf16.cpp, pairs of bfloat16 (bf16_pairs.h), two steps of a
// chain each.
#pragma once

#include "engine/cpu/simd.h"

#ifdef KVEVAL_BF16_PAIRS
#include "engine/cpu/bf16_pairs.h"
#endif

namespace kveval::KVEVAL_LEVEL {

// Rows x vectors in registers: 12 x 2 zmm (24 accumulators, 2 panel vectors, 1 broadcast of 32) or 6 x 1 pair
// of ymm (12, 2 and 1 of 16).
#ifdef __AVX512F__
inline constexpr int kMicroRows = 12, kMicroVectors = 2;
#else
inline constexpr int kMicroRows = 6, kMicroVectors = 1;
#endif

#ifndef KVEVAL_BF16_PAIRS
KVEVAL_INLINE V multiply_add(V x, V w, V sum) { return fma(x, w, sum); }
#endif

// Panels of one operand, [dwords][16] each: vector v of the k-th dword is at data + v * stride + 16 k.
struct Panels {
  const float* data;
  size_t stride;
};

// A depth known when compiled.
template <int N>
struct Constant {
  constexpr operator int() const { return N; }
};

// c[r][16 v ..] = begin(r, &c[r][16 v]) + a[r * AStride + k] * panels[v][k], k = 0 .. depth - 1. AStride is a
// constant so that the broadcasts need no pointer a row. each(k) may prefetch. The unroll counts must not lie
// below the trip counts: the accumulators would live in memory (0.27 of peak instead of 0.95).
template <size_t AStride, int Vectors, int Rows, class Depth, class Begin, class Each>
static void micro(const float* a, const Panels& panels, Depth depth, float* c, size_t ldc, const Begin& begin,
                  const Each& each) {
  static_assert(Rows <= 12 && Vectors <= 4);
  V sum[Rows][Vectors];
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) sum[r][v] = begin(r, c + r * ldc + 16 * v);
  const float* b = panels.data;
  const int steps = depth;
#pragma GCC unroll 2
  for (int k = 0; k < steps; k++, a++, b += 16) {
    each(k);
    V w[Vectors];
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) w[v] = load(b + v * panels.stride);
#pragma GCC unroll 12
    for (size_t r = 0; r < Rows; r++) {
      const V x = splat(a[r * AStride]);
#pragma GCC unroll 4
      for (size_t v = 0; v < Vectors; v++) sum[r][v] = multiply_add(x, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) store(c + r * ldc + 16 * v, sum[r][v]);
}

// micro<.., rows> for up to Rows rows, known at run time.
template <size_t AStride, int Vectors, int Rows, class Depth, class Begin, class Each>
static void micro_rows(int rows, const float* a, const Panels& panels, Depth depth, float* c, size_t ldc,
                       const Begin& begin, const Each& each) {
  if (rows == Rows) return micro<AStride, Vectors, Rows>(a, panels, depth, c, ldc, begin, each);
  if constexpr (Rows > 1) micro_rows<AStride, Vectors, Rows - 1>(rows, a, panels, depth, c, ldc, begin, each);
}

}  // namespace kveval::KVEVAL_LEVEL
