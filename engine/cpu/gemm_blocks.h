// The blocked matrix product behind many rows: panels of decoded weights, which many tiles of rows use, and a
// micro-kernel over them. What a dword of an operand holds is the includer's business (gemm_simd.cpp,
// gemm_bf16.cpp).
#pragma once

#include "engine/cpu/micro_kernel.h"
#include "engine/cpu/weight_format.h"

namespace kveval::KVEVAL_LEVEL {

using cpu::kGemmDepth;
static_assert(kMicroVectors <= cpu::kGemmPanels);

// Weights of neighbouring row blocks, [dwords of depth][16] each: vector v of the i-th is at data + v *
// stride
// + 16 i.
struct Panels {
  const float* data;
  size_t stride;
};

// How far ahead of its loads a product of few rows fetches weights, in bytes: into the row blocks that come
// next, so that no block begins cold (0.6-0.8 of the speed otherwise), as long as they survive in a megabyte
// of L2 until then. Longer rows fetch ahead in themselves, which there is worth a quarter. AVX2 is bound by
// decoding and gains nothing from that.
static inline size_t prefetch_distance(int blocks, size_t row_block_bytes) {
  constexpr size_t kSurvives = size_t(192) << 10, kInRow = 2048;
  const size_t next = size_t(blocks) * row_block_bytes;
  return kRegisters == 32 && next > kSurvives ? kInRow : next;
}

// The next panels on their way to L2 while this block computes: the largest single gain measured.
struct Prefetch {
  const char* first;
  size_t gap;  // to the second, 0: only one
  int lines;   // of 64 bytes, of each
};

template <class Weights>
static Prefetch packed_panel(const uint8_t* row_block, int k, int depth) {
  const int group = k / Weights::kGroup, last = (k + depth - 1) / Weights::kGroup;
  const uint8_t* begin = k % Weights::kLayout.block == 0 ? Weights::block_of(row_block, group)
                                                         : Weights::codes_of(row_block, group);
  const uint8_t* end = Weights::codes_of(row_block, last) + cpu::group_bytes(Weights::kLayout);
  return {reinterpret_cast<const char*>(begin), 0, int((end - begin) / 64)};
}

template <int Rows, int Vectors>
static void micro(const float* a, const Panels& panels, int depth, float* c, size_t ldc, bool first,
                  const Prefetch& next) {
  V sum[Rows][Vectors];
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) sum[r][v] = first ? zero() : load(c + r * ldc + 16 * v);
  chain<kGemmDepth>(
      sum, a, panels.data, panels.stride, depth, [&next](int k) __attribute__((always_inline)) {
        if (k < next.lines) {
          _mm_prefetch(next.first + size_t(k) * 64, _MM_HINT_T1);
          _mm_prefetch(next.first + next.gap + size_t(k) * 64, _MM_HINT_T1);
        }
      });
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t v = 0; v < Vectors; v++) store(c + r * ldc + 16 * v, sum[r][v]);
}

// micro<rows, Vectors> for rows known at run time.
template <int Vectors, int Rows = kMicroRows>
static void micro_rows(int rows, const float* a, const Panels& panels, int depth, float* c, size_t ldc,
                       bool first, const Prefetch& next) {
  if (rows == Rows) return micro<Rows, Vectors>(a, panels, depth, c, ldc, first, next);
  if constexpr (Rows > 1) micro_rows<Vectors, Rows - 1>(rows, a, panels, depth, c, ldc, first, next);
}

// Operands says what is multiplied: Operands::Packed, the weights; kPerDword k's in a dword; pack_row(a,
// depth, out), one row's dwords; panels(weights, row_block_bytes, vectors, k, depth, scratch), the weights'
// dwords, in scratch ([vectors][kGemmDepth][16]) or where they lie.
template <class Operands>
static void many_rows(const uint8_t* weights, int n_begin, int n_end, int cols, const float* a, int m,
                      size_t lda, float* c, size_t ldc, float* scratch) {
  using Weights = typename Operands::Packed;
  constexpr int kPerDword = Operands::kPerDword;
  const size_t bytes = cpu::row_block_bytes(Weights::kLayout, cols);
  float* panel_scratch = scratch + size_t(m) * kGemmDepth;
  // Few rows: the panels must stay in L1 (2 x 16 x 160 dwords: 20 KB). Many: fewer trips of the accumulators
  // to C.
  const int step = (m < 64 ? kGemmDepth / 2 : kGemmDepth) * kPerDword;
  const int tiles = (m + kMicroRows - 1) / kMicroRows;
  const auto tile_begin = [m, tiles](int t) {
    return int(size_t(m) * size_t(t) / size_t(tiles));
  };  // even: no thin tail
  for (int k = 0; k < cols; k += step) {
    const int depth = cols - k < step ? cols - k : step, dwords = (depth + kPerDword - 1) / kPerDword;
    // A constant row stride, whatever lda: no cache-set conflicts, and the micro-kernel addresses rows by
    // constants.
    for (int i = 0; i < m; i++)
      Operands::pack_row(a + size_t(i) * lda + k, depth, scratch + size_t(i) * kGemmDepth);
    int vectors = 0;
    for (int n = n_begin; n < n_end; n += 16 * vectors) {
      vectors = n_end - n < 16 * kMicroVectors ? (n_end - n) / 16 : kMicroVectors;
      const uint8_t* row_block = weights + size_t(n / 16) * bytes;
      const Panels w = Operands::panels(row_block, bytes, vectors, k, depth, panel_scratch);
      const Prefetch next = packed_panel<Weights>(row_block + size_t(vectors) * bytes, k, depth);
      for (int t = 0; t < tiles; t++) {
        const int row = tile_begin(t), rows = tile_begin(t + 1) - row;
        if (k > 0 && t + 1 < tiles) {  // the parked accumulators of the next rows
          for (int i = tile_begin(t + 1); i < tile_begin(t + 2); i++)
            for (size_t v = 0; v < size_t(vectors); v++)
              _mm_prefetch(reinterpret_cast<const char*>(c + size_t(i) * ldc + n + 16 * v), _MM_HINT_T0);
        }
        // The first tile fetches the next first panel, the second tile the second; a lone tile both.
        const Prefetch prefetch = {next.first + (t == 0 ? 0 : bytes), tiles > 1 ? 0 : bytes,
                                   t < 2 ? next.lines : 0};
        const float* rows_a = scratch + size_t(row) * kGemmDepth;
        float* rows_c = c + size_t(row) * ldc + n;
        if (vectors == kMicroVectors)
          micro_rows<kMicroVectors>(rows, rows_a, w, dwords, rows_c, ldc, k == 0, prefetch);
        else
          micro_rows<1>(rows, rows_a, w, dwords, rows_c, ldc, k == 0, prefetch);
      }
    }
  }
}

}  // namespace kveval::KVEVAL_LEVEL
