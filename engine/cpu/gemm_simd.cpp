// C = A W^T with W packed in blocks of 16 rows. Every output is one chain of fused multiply-adds over k, for
// any m: blocking over k parks the float32 accumulator in C, it never splits the sum.
//
// Weights are decoded (packed_weights.h) into registers for a few rows, where they go straight into the
// chains, and into float panels for more, where many tiles of rows use them.
#include <cstring>

#include "engine/cpu/gemm_blocks.h"
#include "engine/cpu/level_kernels.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

template <class Weights>
struct Floats {
  using Packed = Weights;
  static constexpr int kPerDword = 1;

  static void pack_row(const float* a, int depth, float* out) {
    std::memcpy(out, a, size_t(depth) * sizeof(float));
  }
  template <class Unit>
  KVEVAL_INLINE V dword(const typename Weights::Group& group, const Unit& unit, int i) {
    return Weights::weight(group, unit, i);
  }
  KVEVAL_INLINE V float_dword(const uint8_t* row_block, int k, int) {
    return Weights::weight(Weights::group(row_block, k), Weights::codes_of(row_block, k), 0);
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
