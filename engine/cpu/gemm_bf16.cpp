// gemm_simd.cpp's products with vdpbf16ps: weights and rows of A rounded to bfloat16, two k's a dword.
// Weights get the value they have in float32 first (packed_weights.h), so both arithmetics round the same
// numbers.
#include "engine/cpu/bf16_kernels.h"
#include "engine/cpu/bf16_pairs.h"
#include "engine/cpu/gemm_blocks.h"
#include "engine/cpu/packed_weights.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

// The partner of an odd last k: times A's zero it is a -0, which changes no sum.
constexpr float kNothing = -0.f;

// Weights k and k + 1 of a format of floats.
template <class Weights>
KVEVAL_INLINE V float_pairs(const uint8_t* row_block, int k, int cols) {
  const uint8_t* codes = Weights::codes_of(row_block, k);
  if (k + 1 == cols) return pairs(Weights::weight(Weights::group(row_block, k), codes, 0), splat(kNothing));
  if constexpr (Weights::kLayout.codes == cpu::Codes::bf16) {
    return pairs_of_codes(codes);
  } else {
    const auto none = Weights::group(row_block, k);
    return pairs(Weights::weight(none, codes, 0),
                 Weights::weight(none, Weights::codes_of(row_block, k + 1), 0));
  }
}

template <class Weights>
struct Pairs {
  using Packed = Weights;
  static constexpr int kPerDword = 2;

  // a: pairs, lda dwords apart.
  template <int Blocks, int Rows>
  static void stream(const uint8_t* weights, size_t row_block_bytes, int cols, const float* a, size_t lda,
                     float* c, size_t ldc) {
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
      for (int k = 0; k < cols; k += 2, a++)
#pragma GCC unroll 4
        for (size_t b = 0; b < Blocks; b++) {
          const uint8_t* row_block = weights + b * row_block_bytes;
          prefetch(Weights::codes_of(row_block, k));
          if constexpr (Weights::kPanels) prefetch(Weights::codes_of(row_block, k) + 64);
          add(b, float_pairs<Weights>(row_block, k, cols));
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
          static_assert(Weights::kUnit % 2 == 0 && Weights::kUnit <= 16);
#pragma GCC unroll 8
          for (int i = 0; i < Weights::kUnit; i += 2, a++)
#pragma GCC unroll 4
            for (size_t b = 0; b < Blocks; b++)
              add(b, pairs(Weights::weight(group[b], unit[b], i), Weights::weight(group[b], unit[b], i + 1)));
        }
      }
    }
#pragma GCC unroll 12
    for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
      for (size_t b = 0; b < Blocks; b++) store(c + r * ldc + 16 * b, sum[r][b]);
  }

  static void pack_row(const float* a, int depth, float* out) { pack_neighbours(a, depth, out); }

  static Panels panels(const uint8_t* weights, size_t row_block_bytes, int vectors, int k, int depth,
                       float* scratch) {
    for (size_t v = 0; v < size_t(vectors); v++)
      decode_panel(weights + v * row_block_bytes, k, depth, scratch + v * kGemmDepth * 16);
    return {scratch, size_t(kGemmDepth) * 16};
  }

 private:
  // out: [(depth + 1) / 2][16]. k is even; of formats with groups k and depth are multiples of them.
  static void decode_panel(const uint8_t* row_block, int k, int depth, float* out) {
    if constexpr (Weights::kFloats) {
      for (const int end = k + depth; k < end; k += 2, out += 16)
        store(out, float_pairs<Weights>(row_block, k, end));
    } else {
      for (int g = k / Weights::kGroup; g < (k + depth) / Weights::kGroup; g++) {
        const auto group = Weights::group(row_block, g);
        const uint8_t* codes = Weights::codes_of(row_block, g);
        for (int u = 0; u < Weights::kUnits; u++) {
          const auto unit = Weights::unit(codes, u);
#pragma GCC unroll 8
          for (int i = 0; i < Weights::kUnit; i += 2, out += 16)
            store(out, pairs(Weights::weight(group, unit, i), Weights::weight(group, unit, i + 1)));
        }
      }
    }
  }
};

}  // namespace

void gemm_bf16(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a,
               int m, size_t lda, float* c, size_t ldc, float* scratch) {
  const size_t pairs = size_t(cols + 31) / 32 * 16;
  if (m <= kFewRows)
    for (int i = 0; i < m; i++) pack_neighbours(a + size_t(i) * lda, cols, scratch + size_t(i) * pairs);
  for_type(type, [&]<TensorType Type>() {
    using Operands = Pairs<PackedWeights<Type>>;
    if (m <= kFewRows)
      few_rows<Operands>(packed, n_begin, n_end, cols, scratch, m, pairs, c, ldc);
    else
      many_rows<Operands>(packed, n_begin, n_end, cols, a, m, lda, c, ldc, scratch);
  });
}

}  // namespace kveval::KVEVAL_LEVEL
