// gemm_simd.cpp's products with vdpbf16ps: weights and rows of A rounded to bfloat16, two k's a dword.
// Weights get the value they have in float32 first (packed_weights.h), so both arithmetics round the same
// numbers.
#include "engine/cpu/bf16_kernels.h"
#include "engine/cpu/bf16_pairs.h"
#include "engine/cpu/gemm_blocks.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

// The partner of an odd last k: times A's zero it is a -0, which changes no sum.
constexpr float kNothing = -0.f;

template <class Weights>
struct Pairs {
  using Packed = Weights;
  static constexpr int kPerDword = 2;

  static void pack_row(const float* a, int depth, float* out) { pack_neighbours(a, depth, out); }
  template <class Unit>
  KVEVAL_INLINE V dword(const typename Weights::Group& group, const Unit& unit, int i) {
    return pairs(Weights::weight(group, unit, i), Weights::weight(group, unit, i + 1));
  }
  KVEVAL_INLINE V float_dword(const uint8_t* row_block, int k, int end) {
    const uint8_t* codes = Weights::codes_of(row_block, k);
    const auto none = Weights::group(row_block, k);
    if (k + 1 == end) return pairs(Weights::weight(none, codes, 0), splat(kNothing));
    if constexpr (Weights::kLayout.codes == cpu::Codes::bf16) return pairs_of_codes(codes);
    return pairs(Weights::weight(none, codes, 0),
                 Weights::weight(none, Weights::codes_of(row_block, k + 1), 0));
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
