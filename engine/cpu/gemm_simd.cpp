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

template <class Weights>
struct Floats {
  using Packed = Weights;
  static constexpr int kPerDword = 1;

  // Blocks x Rows independent chains hide the latency of the FMA; the rows share each weight while it is in a
  // register.
  template <int Blocks, int Rows>
  static void stream(const uint8_t* weights, size_t row_block_bytes, int cols, const float* a, size_t lda,
                     float* c, size_t ldc) {
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

}  // namespace

void gemm(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a, int m,
          size_t lda, float* c, size_t ldc, float* scratch) {
  for_type(type, [&]<TensorType Type>() {
    using Operands = Floats<PackedWeights<Type>>;
    if (m <= kFewRows)
      few_rows<Operands>(packed, n_begin, n_end, cols, a, m, lda, c, ldc);
    else
      many_rows<Operands>(packed, n_begin, n_end, cols, a, m, lda, c, ldc, scratch);
  });
}

}  // namespace kveval::KVEVAL_LEVEL
