// The matrix product with packed weights, for few rows and for many; what a dword of an operand holds is the
// includer's business (gemm_simd.cpp, gemm_bf16.cpp).
//
// Operands says what is multiplied: Operands::Packed, the weights (packed_weights.h); kPerDword k's in a
// dword; pack_row(a, depth, out), one row's dwords; dword(group, unit, i), weights i .. of a unit;
// float_dword(row_block, k, end), weights k .. of a format of floats, whose last k is end - 1.
#pragma once

#include "engine/cpu/micro_kernel.h"
#include "engine/cpu/packed_weights.h"
#include "engine/cpu/weight_format.h"

namespace kveval::KVEVAL_LEVEL {

using cpu::kGemmDepth;
static_assert(kMicroVectors <= cpu::kGemmPanels);

// ---------------------------------------------------------------------- few rows

// As many as keep all accumulators of two row blocks (AVX2: of one) in registers. At 5 to 8 rows this reaches
// 0.65-0.95 of peak by format, panels 0.55-0.7.
inline constexpr int kFewRows = kRegisters == 32 ? cpu::kGemmFewRows : 6;
static_assert(kFewRows <= cpu::kGemmFewRows);

// How far ahead of its loads a product of few rows fetches weights, in bytes: into the row blocks that come
// next, so that no block begins cold (0.6-0.8 of the speed otherwise), as long as they survive in a megabyte
// of L2 until then. Longer rows fetch ahead in themselves, which there is worth a quarter. AVX2 is bound by
// decoding and gains nothing from that.
static inline size_t prefetch_distance(int blocks, size_t row_block_bytes) {
  constexpr size_t kSurvives = size_t(192) << 10, kInRow = 2048;
  const size_t next = size_t(blocks) * row_block_bytes;
  return kRegisters == 32 && next > kSurvives ? kInRow : next;
}

// Rows x row blocks straight from packed weights: that many independent chains hide the latency of the
// multiply-add, and the rows share each weight while it is in a register. a: dwords, lda apart.
template <class Operands, int Blocks, int Rows>
static void stream(const uint8_t* weights, size_t row_block_bytes, int cols, const float* a, size_t lda,
                   float* c, size_t ldc) {
  using Weights = typename Operands::Packed;
  constexpr int kPerDword = Operands::kPerDword;
  V sum[Rows][Blocks];
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t b = 0; b < Blocks; b++) sum[r][b] = zero();
  const auto add = [&](size_t b, V w) __attribute__((always_inline)) {
#pragma GCC unroll 12
    for (size_t r = 0; r < Rows; r++) sum[r][b] = multiply_add(splat(a[r * lda]), w, sum[r][b]);
  };
  const auto prefetch = [ahead = prefetch_distance(Blocks, row_block_bytes)](const uint8_t* p)
      __attribute__((always_inline)) {
    _mm_prefetch(reinterpret_cast<const char*>(p + ahead), _MM_HINT_T0);
  };
  if constexpr (Weights::kFloats) {
    for (int k = 0; k < cols; k += kPerDword, a++)
#pragma GCC unroll 4
      for (size_t b = 0; b < Blocks; b++) {
        const uint8_t* row_block = weights + b * row_block_bytes;
        prefetch(Weights::codes_of(row_block, k));
        if constexpr (kPerDword == 2 && Weights::kPanels) prefetch(Weights::codes_of(row_block, k) + 64);
        add(b, Operands::float_dword(row_block, k, cols));
      }
  } else {
    for (int g = 0; g < cols / Weights::kGroup; g++) {
      typename Weights::Group group[Blocks];
      const uint8_t* codes[Blocks];
#pragma GCC unroll 4
      for (size_t b = 0; b < Blocks; b++) {
        group[b] = Weights::group(weights + b * row_block_bytes, g);
        codes[b] = Weights::codes_of(weights + b * row_block_bytes, g);
        prefetch(Weights::header_line(weights + b * row_block_bytes, g));
        if constexpr (Weights::kHigh > 0) prefetch(codes[b] + cpu::low_plane_bytes(Weights::kLayout));
      }
      for (int u = 0; u < Weights::kUnits; u++) {
        decltype(Weights::unit(weights, 0)) unit[Blocks];
#pragma GCC unroll 4
        for (size_t b = 0; b < Blocks; b++) {
          unit[b] = Weights::unit(codes[b], u);
          prefetch(codes[b] + size_t(u) * 64);
        }
        static_assert(Weights::kUnit % kPerDword == 0 && Weights::kUnit <= 16);
#pragma GCC unroll 16
        for (int i = 0; i < Weights::kUnit; i += kPerDword, a++)
#pragma GCC unroll 4
          for (size_t b = 0; b < Blocks; b++) add(b, Operands::dword(group[b], unit[b], i));
      }
    }
  }
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t b = 0; b < Blocks; b++) store(c + r * ldc + 16 * b, sum[r][b]);
}

// stream<.., blocks, ..> for up to Blocks row blocks, known at run time.
template <class Operands, int Blocks, int Rows>
static void stream_blocks(int blocks, const uint8_t* weights, size_t row_block_bytes, int cols,
                          const float* a, size_t lda, float* c, size_t ldc) {
  if (blocks == Blocks) return stream<Operands, Blocks, Rows>(weights, row_block_bytes, cols, a, lda, c, ldc);
  // With several rows even one block has chains enough: two widths will do.
  if constexpr (Blocks > 1)
    stream_blocks<Operands, Rows == 1 ? Blocks - 1 : 1, Rows>(blocks, weights, row_block_bytes, cols, a, lda,
                                                              c, ldc);
}

// m <= Rows.
template <class Operands, int Rows = kFewRows>
static void few_rows(const uint8_t* weights, int n_begin, int n_end, int cols, const float* a, int m,
                     size_t lda, float* c, size_t ldc) {
  if constexpr (Rows > 1)
    if (m < Rows) return few_rows<Operands, Rows - 1>(weights, n_begin, n_end, cols, a, m, lda, c, ldc);
  constexpr int kBlocks = kRegisters == 32 ? (Rows <= 4 ? 4 : 2) : Rows <= 2 ? 2 : 1;
  const size_t bytes = cpu::row_block_bytes(Operands::Packed::kLayout, cols);
  for (int n = n_begin, blocks; n < n_end; n += 16 * blocks) {
    const int left = (n_end - n) / 16, streams = (left + kBlocks - 1) / kBlocks;
    // One row: evenly, since a block alone would wait for its FMAs and take as long as three.
    blocks = Rows == 1 ? (left + streams - 1) / streams : left < kBlocks ? 1 : kBlocks;
    stream_blocks<Operands, kBlocks, Rows>(blocks, weights + size_t(n / 16) * bytes, bytes, cols, a, lda,
                                           c + n, ldc);
  }
}

// ---------------------------------------------------------------------- many rows

// out: [(depth + kPerDword - 1) / kPerDword][16]. k and depth are multiples of the group, of floats k is one
// of kPerDword.
template <class Operands>
static void decode_panel(const uint8_t* row_block, int k, int depth, float* out) {
  using Weights = typename Operands::Packed;
  constexpr int kPerDword = Operands::kPerDword;
  if constexpr (Weights::kFloats) {
    for (const int end = k + depth; k < end; k += kPerDword, out += 16)
      store(out, Operands::float_dword(row_block, k, end));
  } else {
    for (int g = k / Weights::kGroup; g < (k + depth) / Weights::kGroup; g++) {
      const auto group = Weights::group(row_block, g);
      const uint8_t* codes = Weights::codes_of(row_block, g);
      for (int u = 0; u < Weights::kUnits; u++) {
        const auto unit = Weights::unit(codes, u);
#pragma GCC unroll 16
        for (int i = 0; i < Weights::kUnit; i += kPerDword, out += 16)
          store(out, Operands::dword(group, unit, i));
      }
    }
  }
}

// The weights of neighbouring row blocks for some k, in scratch ([vectors][kGemmDepth][16]) or where they
// lie.
template <class Operands>
static Panels weight_panels(const uint8_t* weights, size_t row_block_bytes, int vectors, int k, int depth,
                            float* scratch) {
  if constexpr (Operands::Packed::kPanels && Operands::kPerDword == 1)
    return {reinterpret_cast<const float*>(weights) + size_t(k) * 16, row_block_bytes / sizeof(float)};
  for (size_t v = 0; v < size_t(vectors); v++)
    decode_panel<Operands>(weights + v * row_block_bytes, k, depth, scratch + v * kGemmDepth * 16);
  return {scratch, size_t(kGemmDepth) * 16};
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
      const Panels w = weight_panels<Operands>(row_block, bytes, vectors, k, depth, panel_scratch);
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
        const auto parked = [first = k == 0](size_t, const float* sum) __attribute__((always_inline)) {
          return first ? zero() : load(sum);
        };
        const auto fetch = [&prefetch](int i) __attribute__((always_inline)) {
          if (i >= prefetch.lines) return;
          _mm_prefetch(prefetch.first + size_t(i) * 64, _MM_HINT_T1);
          _mm_prefetch(prefetch.first + prefetch.gap + size_t(i) * 64, _MM_HINT_T1);
        };
        if (vectors == kMicroVectors)
          micro_rows<kGemmDepth, kMicroVectors, kMicroRows>(rows, rows_a, w, dwords, rows_c, ldc, parked,
                                                            fetch);
        else
          micro_rows<kGemmDepth, 1, kMicroRows>(rows, rows_a, w, dwords, rows_c, ldc, parked, fetch);
      }
    }
  }
}

// ---------------------------------------------------------------------- the one dispatch over types

// run.operator()<Type>() for the type.
template <class Run>
static void for_type(TensorType type, const Run& run) {
  using enum TensorType;
  switch (type) {
    case f32: return run.template operator()<f32>();
    case f16: return run.template operator()<f16>();
    case bf16: return run.template operator()<bf16>();
    case q4_0: return run.template operator()<q4_0>();
    case q4_1: return run.template operator()<q4_1>();
    case q5_0: return run.template operator()<q5_0>();
    case q5_1: return run.template operator()<q5_1>();
    case q8_0: return run.template operator()<q8_0>();
    case iq4_nl: return run.template operator()<iq4_nl>();
    case q2_k: return run.template operator()<q2_k>();
    case q3_k: return run.template operator()<q3_k>();
    case q4_k: return run.template operator()<q4_k>();
    case q5_k: return run.template operator()<q5_k>();
    case q6_k: return run.template operator()<q6_k>();
  }
}

}  // namespace kveval::KVEVAL_LEVEL
