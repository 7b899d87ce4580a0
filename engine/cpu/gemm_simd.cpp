// C = A W^T with W packed in blocks of 16 rows. Every output is one chain of fused multiply-adds over k, for
// any m: blocking over k parks the float32 accumulator in C, it never splits the sum.
//
// Weights are decoded (packed_weights.h) into registers for a few rows, where they go straight into the
// chains, and into float panels for more, where many tiles of rows use them.
#include <cstring>

#include "engine/cpu/level_kernels.h"
#include "engine/cpu/micro_kernel.h"
#include "engine/cpu/packed_weights.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

using cpu::kGemmDepth;
static_assert(kMicroVectors <= cpu::kGemmPanels);

// ---------------------------------------------------------------------- few rows

// As many as keep all accumulators of two row blocks (AVX2: of one) in registers. At 5 to 8 rows this reaches
// 0.65-0.95 of peak by format, panels 0.55-0.7.
constexpr int kFewRows = kRegisters == 32 ? 10 : 6;

// Blocks x Rows independent chains hide the latency of the FMA; the rows share each weight while it is in a
// register.
template <class Weights, int Blocks, int Rows>
void stream(const uint8_t* weights, size_t row_block_bytes, int cols, const float* a, size_t lda, float* c,
            size_t ldc) {
  V sum[Rows][Blocks];
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t b = 0; b < Blocks; b++) sum[r][b] = zero();
  const auto prefetch = [ahead = size_t(Blocks) * row_block_bytes](const uint8_t* p)
      __attribute__((always_inline)) {
    _mm_prefetch(reinterpret_cast<const char*>(p + ahead), _MM_HINT_T0);
  };
  for (int g = 0; g < cols / Weights::kGroup; g++) {
    typename Weights::Group group[Blocks];
    const uint8_t* codes[Blocks];
#pragma GCC unroll 4
    for (size_t b = 0; b < Blocks; b++) {
      group[b] = Weights::group(weights + b * row_block_bytes, g);
      codes[b] = Weights::codes_of(weights + b * row_block_bytes, g);
      if constexpr (!Weights::kFloats) prefetch(Weights::header_line(weights + b * row_block_bytes, g));
      if constexpr (Weights::kHigh > 0) prefetch(codes[b] + cpu::low_plane_bytes(Weights::kLayout));
    }
    for (int u = 0; u < Weights::kUnits; u++) {
      decltype(Weights::unit(weights, 0)) unit[Blocks];
#pragma GCC unroll 4
      for (size_t b = 0; b < Blocks; b++) {
        unit[b] = Weights::unit(codes[b], u);
        prefetch(codes[b] + size_t(u) * 64);
      }
      static_assert(Weights::kUnit <= 16);
#pragma GCC unroll 16
      for (int i = 0; i < Weights::kUnit; i++, a++)
#pragma GCC unroll 4
        for (size_t b = 0; b < Blocks; b++) {
          const V w = Weights::weight(group[b], unit[b], i);
#pragma GCC unroll 12
          for (size_t r = 0; r < Rows; r++) sum[r][b] = fma(splat(a[r * lda]), w, sum[r][b]);
        }
    }
  }
#pragma GCC unroll 12
  for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
    for (size_t b = 0; b < Blocks; b++) store(c + r * ldc + 16 * b, sum[r][b]);
}

// m <= Rows.
template <class Weights, int Rows = kFewRows>
void few_rows(const uint8_t* weights, int n_begin, int n_end, int cols, const float* a, int m, size_t lda,
              float* c, size_t ldc) {
  if constexpr (Rows > 1)
    if (m < Rows) return few_rows<Weights, Rows - 1>(weights, n_begin, n_end, cols, a, m, lda, c, ldc);
  constexpr int kBlocks = kRegisters == 32 ? (Rows <= 4 ? 4 : 2) : Rows <= 2 ? 2 : 1;
  const size_t bytes = cpu::row_block_bytes(Weights::kLayout, cols);
  int n = n_begin;
  for (; n + 16 * kBlocks <= n_end; n += 16 * kBlocks)
    stream<Weights, kBlocks, Rows>(weights + size_t(n / 16) * bytes, bytes, cols, a, lda, c + n, ldc);
  for (; n < n_end; n += 16)
    stream<Weights, 1, Rows>(weights + size_t(n / 16) * bytes, bytes, cols, a, lda, c + n, ldc);
}

// ---------------------------------------------------------------------- many rows

// Weights of neighbouring row blocks for some k: vector v of the k-th is at data + v * stride + 16 k.
struct Panels {
  const float* data;
  size_t stride;
};

// out: [depth][16]. k and depth are multiples of the group.
template <class Weights>
void decode_panel(const uint8_t* row_block, int k, int depth, float* out) {
  for (int g = k / Weights::kGroup; g < (k + depth) / Weights::kGroup; g++) {
    const auto group = Weights::group(row_block, g);
    const uint8_t* codes = Weights::codes_of(row_block, g);
    for (int u = 0; u < Weights::kUnits; u++) {
      const auto unit = Weights::unit(codes, u);
#pragma GCC unroll 16
      for (int i = 0; i < Weights::kUnit; i++, out += 16) store(out, Weights::weight(group, unit, i));
    }
  }
}

template <class Weights>
Panels panels(const uint8_t* weights, size_t row_block_bytes, int vectors, int k, int depth, float* scratch) {
  if constexpr (Weights::kPanels)
    return {reinterpret_cast<const float*>(weights) + size_t(k) * 16, row_block_bytes / sizeof(float)};
  for (size_t v = 0; v < size_t(vectors); v++)
    decode_panel<Weights>(weights + v * row_block_bytes, k, depth, scratch + v * kGemmDepth * 16);
  return {scratch, size_t(kGemmDepth) * 16};
}

// The next panels on their way to L2 while this block computes: the largest single gain measured.
struct Prefetch {
  const char* first;
  size_t gap;  // to the second, 0: only one
  int lines;   // of 64 bytes, of each
};

template <class Weights>
Prefetch packed_panel(const uint8_t* row_block, int k, int depth) {
  const int group = k / Weights::kGroup, last = (k + depth - 1) / Weights::kGroup;
  const uint8_t* begin = k % Weights::kLayout.block == 0 ? Weights::block_of(row_block, group)
                                                         : Weights::codes_of(row_block, group);
  const uint8_t* end = Weights::codes_of(row_block, last) + cpu::group_bytes(Weights::kLayout);
  return {reinterpret_cast<const char*>(begin), 0, int((end - begin) / 64)};
}

template <int Rows, int Vectors>
void micro(const float* a, const Panels& panels, int depth, float* c, size_t ldc, bool first,
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
void micro_rows(int rows, const float* a, const Panels& panels, int depth, float* c, size_t ldc, bool first,
                const Prefetch& next) {
  if (rows == Rows) return micro<Rows, Vectors>(a, panels, depth, c, ldc, first, next);
  if constexpr (Rows > 1) micro_rows<Vectors, Rows - 1>(rows, a, panels, depth, c, ldc, first, next);
}

template <class Weights>
void many_rows(const uint8_t* weights, int n_begin, int n_end, int cols, const float* a, int m, size_t lda,
               float* c, size_t ldc, float* scratch) {
  const size_t bytes = cpu::row_block_bytes(Weights::kLayout, cols);
  float* panel_scratch = scratch + size_t(m) * kGemmDepth;
  // Few rows: the panels must stay in L1 (2 x 16 x 160 floats: 20 KB). Many: fewer trips of the accumulators
  // to C.
  const int step = m < 64 ? kGemmDepth / 2 : kGemmDepth;
  const int tiles = (m + kMicroRows - 1) / kMicroRows;
  const auto tile_begin = [m, tiles](int t) {
    return int(size_t(m) * size_t(t) / size_t(tiles));
  };  // even: no thin tail
  for (int k = 0; k < cols; k += step) {
    const int depth = cols - k < step ? cols - k : step;
    // A constant row stride, whatever lda: no cache-set conflicts, and the micro-kernel addresses rows by
    // constants.
    for (int i = 0; i < m; i++)
      std::memcpy(scratch + size_t(i) * kGemmDepth, a + size_t(i) * lda + k, size_t(depth) * sizeof(float));
    int vectors = 0;
    for (int n = n_begin; n < n_end; n += 16 * vectors) {
      vectors = n_end - n < 16 * kMicroVectors ? (n_end - n) / 16 : kMicroVectors;
      const uint8_t* row_block = weights + size_t(n / 16) * bytes;
      const Panels w = panels<Weights>(row_block, bytes, vectors, k, depth, panel_scratch);
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
          micro_rows<kMicroVectors>(rows, rows_a, w, depth, rows_c, ldc, k == 0, prefetch);
        else
          micro_rows<1>(rows, rows_a, w, depth, rows_c, ldc, k == 0, prefetch);
      }
    }
  }
}

template <TensorType Type>
void multiply(const uint8_t* weights, int n_begin, int n_end, int cols, const float* a, int m, size_t lda,
              float* c, size_t ldc, float* scratch) {
  using Weights = PackedWeights<Type>;
  if (m <= kFewRows) return few_rows<Weights>(weights, n_begin, n_end, cols, a, m, lda, c, ldc);
  many_rows<Weights>(weights, n_begin, n_end, cols, a, m, lda, c, ldc, scratch);
}

using Multiply = decltype(&multiply<TensorType::f32>);

Multiply multiply_for(TensorType type) {
  using enum TensorType;
  switch (type) {
    case f32: return multiply<f32>;
    case f16: return multiply<f16>;
    case bf16: return multiply<bf16>;
    case q4_0: return multiply<q4_0>;
    case q4_1: return multiply<q4_1>;
    case q5_0: return multiply<q5_0>;
    case q5_1: return multiply<q5_1>;
    case q8_0: return multiply<q8_0>;
    case iq4_nl: return multiply<iq4_nl>;
    case q2_k: return multiply<q2_k>;
    case q3_k: return multiply<q3_k>;
    case q4_k: return multiply<q4_k>;
    case q5_k: return multiply<q5_k>;
    case q6_k: return multiply<q6_k>;
  }
  return nullptr;
}

}  // namespace

void gemm(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a, int m,
          size_t lda, float* c, size_t ldc, float* scratch) {
  multiply_for(type)(packed, n_begin, n_end, cols, a, m, lda, c, ldc, scratch);
}

}  // namespace kveval::KVEVAL_LEVEL
