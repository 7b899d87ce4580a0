// C = A W^T with W packed in blocks of 16 rows. Every output is one chain of fused multiply-adds over k, for
// any m: blocking over k parks the float32 accumulator in C, it never splits the sum.
//
// Weights are decoded (packed_weights.h) into registers for a few rows, where they go straight into the
// chains, and into float panels for more, where many tiles of rows use them.
#include <cstring>

#include "engine/cpu/gemm_blocks.h"
#include "engine/cpu/level_kernels.h"
#include "engine/cpu/packed_weights.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

// ---------------------------------------------------------------------- few rows

// As many as keep all accumulators of two row blocks (AVX2: of one) in registers. At 5 to 8 rows this reaches
// 0.65-0.95 of peak by format, panels 0.55-0.7.
constexpr int kFewRows = kRegisters == 32 ? 10 : 6;
static_assert(kFewRows <= cpu::kGemmFewRows);

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
  const auto prefetch = [ahead = prefetch_distance(Blocks, row_block_bytes)](const uint8_t* p)
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

template <class Weights>
struct Floats {
  using Packed = Weights;
  static constexpr int kPerDword = 1;

  static void pack_row(const float* a, int depth, float* out) {
    std::memcpy(out, a, size_t(depth) * sizeof(float));
  }

  static Panels panels(const uint8_t* weights, size_t row_block_bytes, int vectors, int k, int depth,
                       float* scratch) {
    if constexpr (Weights::kPanels)
      return {reinterpret_cast<const float*>(weights) + size_t(k) * 16, row_block_bytes / sizeof(float)};
    for (size_t v = 0; v < size_t(vectors); v++)
      decode_panel(weights + v * row_block_bytes, k, depth, scratch + v * kGemmDepth * 16);
    return {scratch, size_t(kGemmDepth) * 16};
  }

 private:
  // out: [depth][16]. k and depth are multiples of the group.
  static void decode_panel(const uint8_t* row_block, int k, int depth, float* out) {
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
};

template <TensorType Type>
void multiply(const uint8_t* weights, int n_begin, int n_end, int cols, const float* a, int m, size_t lda,
              float* c, size_t ldc, float* scratch) {
  using Weights = PackedWeights<Type>;
  if (m <= kFewRows) return few_rows<Weights>(weights, n_begin, n_end, cols, a, m, lda, c, ldc);
  many_rows<Floats<Weights>>(weights, n_begin, n_end, cols, a, m, lda, c, ldc, scratch);
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
