#include "engine/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace kveval::cpu {
namespace {

// A piece of a product: enough columns that copying A's rows into the kernel's blocks (once a piece) stays
// below 3 % of the work, or, for a few rows, enough weights (128 KB) to be worth handing to a thread.
int columns_per_piece(int m, int cols) { return m > 4 ? 256 : std::max(kLanes, 32768 / std::max(1, cols)); }

}  // namespace

PackedMatrix pack(const Tensor& matrix) {
  PackedMatrix packed{int(rows(matrix)), int(cols(matrix)), {}};
  const size_t width = size_t(packed.cols);
  packed.values.reserve(size_t(packed.padded_rows()) * width);
  std::vector<float> row(width);
  for (int r = 0; r < packed.padded_rows(); r++) {
    if (r < packed.rows)
      dequantize_row(matrix, r, row.data());
    else
      std::fill(row.begin(), row.end(), 0.f);
    float* out = packed.values.data() + size_t(r / kLanes * kLanes) * width + r % kLanes;
    for (size_t k = 0; k < width; k++) out[k * kLanes] = row[k];
  }
  return packed;
}

void matmul(const Kernels& kernels, ThreadPool& pool, const PackedMatrix& matrix, const float* a, int m,
            size_t lda, float* c, size_t ldc) {
  if (m <= 0 || matrix.rows <= 0) return;
  // Whole vectors are written: a last block that does not fit between c's rows goes through a buffer.
  const int padded = matrix.padded_rows();
  const int direct = ldc >= size_t(padded) ? padded : matrix.rows / kLanes * kLanes;
  const int pairs = (direct + 2 * kLanes - 1) / (2 * kLanes);  // pieces are cut between pairs of blocks
  const int pieces = std::clamp(direct / columns_per_piece(m, matrix.cols), 1, 2 * pool.size());

  pool.run(pieces, [&](int piece, int) {
    static thread_local Buffer scratch;
    scratch.reserve(gemm_scratch_floats(m));
    const auto column = [&](int i) {
      return std::min(direct, int(int64_t(pairs) * i / pieces) * 2 * kLanes);
    };
    const int begin = column(piece), end = column(piece + 1);
    if (begin < end)
      kernels.gemm(matrix.values.data(), begin, end, matrix.cols, a, m, lda, c, ldc, scratch.data());
    if (piece + 1 < pieces || direct == padded) return;

    static thread_local Buffer tail;
    tail.reserve(size_t(m) * kLanes);
    const float* block = matrix.values.data() + size_t(direct) * size_t(matrix.cols);
    kernels.gemm(block, 0, kLanes, matrix.cols, a, m, lda, tail.data(), kLanes, scratch.data());
    for (int i = 0; i < m; i++)
      std::memcpy(c + size_t(i) * ldc + direct, tail.data() + size_t(i) * kLanes,
                  size_t(matrix.rows - direct) * sizeof(float));
  });
}

}  // namespace kveval::cpu
