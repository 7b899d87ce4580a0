// What attention_simd.cpp and attention_bf16.cpp do alike: rows of dwords times the panels of a decoded tile,
// and the causal mask.
#pragma once

#include "engine/cpu/attention_kernels.h"
#include "engine/cpu/micro_kernel.h"

namespace kveval::KVEVAL_LEVEL {

using cpu::AttentionRows;
using cpu::kRowsInFlight;
using cpu::kTileKeys;

inline constexpr float kMinusInfinity = -__builtin_inff();
inline constexpr size_t kTile = kTileKeys;
// Row counts are rounded up to whole vectors when per-row numbers are handled 16 at a time.
inline constexpr int kPaddedRows = kRowsInFlight + 16;

// A line of the tile that follows (null: none does), fetched while this one is decoded. Else every tile
// starts cold: up to 2.6 times the time.
static inline void prefetch_line(const uint8_t* next, size_t byte) {
  if (next) _mm_prefetch(reinterpret_cast<const char*>(next + byte), _MM_HINT_T0);
}

// c[r][..] = (init ? init[r] * c[r][..] : 0) + a[r][0 .. Depth) * panels; rows of a are AStride dwords apart.
template <int Depth, int AStride, int Vectors, int Rows>
static void micro(const float* a, const float* panels, float* c, size_t ldc, const float* init) {
  V sum[Rows][Vectors];
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++)
      sum[r][v] = init ? mul(splat(init[r]), load(c + r * ldc + 16 * v)) : zero();
  chain<AStride>(sum, a, panels, size_t(Depth) * 16, Depth, [](int) {});
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) store(c + r * ldc + 16 * v, sum[r][v]);
}

// micro<rows> for rows known at run time.
template <int Depth, int AStride, int Vectors, int Rows>
static void micro_rows(int rows, const float* a, const float* panels, float* c, size_t ldc,
                       const float* init) {
  if (rows == Rows) return micro<Depth, AStride, Vectors, Rows>(a, panels, c, ldc, init);
  if constexpr (Rows > 1) micro_rows<Depth, AStride, Vectors, Rows - 1>(rows, a, panels, c, ldc, init);
}

// `rows` rows times a whole tile of panels: Depth dwords of a, `width` columns of c.
template <int Depth, int AStride = Depth, int Vectors = kMicroVectors, int Rows = kMicroRows>
static void multiply_panels(int rows, const float* a, const float* panels, int width, float* c, size_t ldc,
                            const float* init) {
  for (int w = 0; w < width; w += 16 * Vectors)
    for (int r = 0, n; r < rows; r += n) {
      n = rows - r < Rows ? rows - r : Rows;
      micro_rows<Depth, AStride, Vectors, Rows>(n, a + size_t(r) * AStride, panels + size_t(w) * Depth,
                                                c + size_t(r) * ldc + w, ldc, init ? init + r : nullptr);
    }
}

// -inf where row i of the visit does not see a key.
static inline void mask(const AttentionRows& rows, size_t first_key, int row, int n, float* scores) {
  for (int r = 0; r < n; r++) {
    const size_t position = rows.position[row + r];
    float* s = scores + size_t(r) * kTile;
    if (position < first_key + kTileKeys - 1)
      for (int j = int(position + 1 - first_key); j < kTileKeys; j++) s[j] = kMinusInfinity;
    if (rows.window != 0 && position >= first_key + rows.window) {
      const int hidden = int(position + 1 - rows.window - first_key);
      for (int j = 0; j < hidden; j++) s[j] = kMinusInfinity;
    }
  }
}

}  // namespace kveval::KVEVAL_LEVEL
