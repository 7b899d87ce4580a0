// Pairs of bfloat16 in the lanes of a V, the operands of vdpbf16ps: a dword holds two neighbours along a sum,
// the earlier one in its high half. The instruction adds the high halves' product first, so that an output
// stays one chain in natural order.
//
// Include this only from *_bf16.cpp, which CMake compiles with AVX512_BF16; what simd.h says of *_simd.cpp
// holds there too.
#pragma once

#include <cstring>

#include "engine/cpu/simd.h"

#ifndef KVEVAL_BF16_PAIRS
#error "bf16_pairs.h is for *_bf16.cpp files"
#endif

namespace kveval::KVEVAL_LEVEL {

// sum + x * w of the earlier halves, then + x * w of the later ones.
KVEVAL_INLINE V multiply_add(V x, V w, V sum) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)x.v, (__m512bh)w.v)};
}

// Lane r: earlier[r], later[r], rounded.
KVEVAL_INLINE V pairs(V earlier, V later) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const auto halves = (__m512i)_mm512_cvtne2ps_pbh(earlier.v, later.v);  // earlier's above later's
  return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), halves))};
}

// Two rows of 16 bfloat16, the earlier one first.
KVEVAL_INLINE V pairs_of_codes(const uint8_t* p) {
  alignas(64) static constexpr uint16_t kOrder[32] = {16, 0,  17, 1,  18, 2,  19, 3,  20, 4,  21,
                                                      5,  22, 6,  23, 7,  24, 8,  25, 9,  26, 10,
                                                      27, 11, 28, 12, 29, 13, 30, 14, 31, 15};
  return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), _mm512_loadu_si512(p)))};
}

// x[0], x[1] in lane 0, x[2], x[3] in lane 1 ... of 32 neighbouring values, rounded.
KVEVAL_INLINE V neighbours(V first, V second) {
  return {_mm512_castsi512_ps(_mm512_rol_epi32((__m512i)_mm512_cvtne2ps_pbh(second.v, first.v), 16))};
}

// n values to dwords of neighbours, zeros behind the last; 16 dwords are written at a time.
static inline void pack_neighbours(const float* x, int n, float* out) {
  int i = 0;
  for (; i + 32 <= n; i += 32, out += 16) store(out, neighbours(load(x + i), load(x + i + 16)));
  if (i == n) return;
  float rest[32] = {};
  std::memcpy(rest, x + i, size_t(n - i) * sizeof(float));
  store(out, neighbours(load(rest), load(rest + 16)));
}

}  // namespace kveval::KVEVAL_LEVEL
