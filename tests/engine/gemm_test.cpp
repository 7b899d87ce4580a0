#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "engine/cpu/packed_matrix.h"
#include "engine/model/weights.h"
#include "engine/random.h"
#include "tests/engine/levels.h"

namespace kveval::cpu {
namespace {

std::vector<float> random_values(Random& random, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = float(random.uniform() - 0.5);
  return values;
}

// Straight from the sentence in kernels.h.
float one_chain(const float* a, const float* w, int n) {
  float sum = 0;
  for (int k = 0; k < n; k++) sum = std::fmaf(a[k], w[k], sum);
  return sum;
}

int log_uniform(Random& random, int most) { return int(std::pow(double(most) + 0.99, random.uniform())); }

class Gemm : public EachLevel {};

const float* row_of(const Tensor& matrix, size_t row) {
  return reinterpret_cast<const float*>(matrix.data.data()) + row * size_t(cols(matrix));
}

TEST_P(Gemm, EveryOutputIsOneChainForAnyShape) {
  Random random(7);
  ThreadPool one(1), two(2);
  constexpr float kGuard = 1234.5f;
  for (int trial = 0; trial < 60; trial++) {
    const int m = trial < 8 ? trial + 1 : log_uniform(random, 600);
    const int cols = trial % 10 == 0 ? 1 : 1 + int(random.below(trial % 3 == 0 ? 1000 : 90));
    const int rows = 1 + int(random.below(uint64_t(std::min(700, 1 + 20'000'000 / m / cols))));
    const size_t lda = size_t(cols) + random.below(4);
    const Tensor matrix = float_tensor(rows, cols, random_values(random, size_t(rows) * size_t(cols)));
    const PackedMatrix packed = pack(matrix);
    // Rows that leave no room for padding columns, and rows that do.
    const size_t ldc =
        random.below(2) == 0 ? size_t(rows) + random.below(3) : size_t(packed.padded_rows()) + 2;
    const std::vector<float> a = random_values(random, size_t(m) * lda);
    std::vector<float> c(size_t(m) * ldc, kGuard);
    matmul(*kernels_, trial % 2 == 0 ? one : two, packed, a.data(), m, lda, c.data(), ldc);

    const size_t written = ldc >= size_t(packed.padded_rows()) ? size_t(packed.padded_rows()) : size_t(rows);
    const auto check = [&](int i, size_t n) {
      const float expected = n < size_t(rows) ? one_chain(&a[size_t(i) * lda], row_of(matrix, n), cols)
                             : n < written    ? 0.f
                                              : kGuard;
      ASSERT_EQ(bits(c[size_t(i) * ldc + n]), bits(expected))
          << "row " << i << " of " << m << ", column " << n << " of " << rows << ", " << cols << " deep";
    };
    for (int sample = 0; sample < 300; sample++) check(int(random.below(size_t(m))), random.below(ldc));
    for (size_t n = 0; n < ldc; n++) check(m - 1, n);
  }
}

// As the forward pass calls it: a chunk of any size gives a token the same bits.
TEST_P(Gemm, ChunksAndThreadsDoNotMatter) {
  Random random(8);
  const int rows = 800, cols = 400, m = 70;
  const Tensor matrix = float_tensor(rows, cols, random_values(random, size_t(rows) * size_t(cols)));
  const PackedMatrix packed = pack(matrix);
  const std::vector<float> a = random_values(random, size_t(m) * size_t(cols));
  const auto in_chunks = [&](int chunk, int threads) {
    ThreadPool pool(threads);
    std::vector<float> c(size_t(m) * size_t(rows));
    for (int i = 0; i < m; i += chunk)
      matmul(*kernels_, pool, packed, &a[size_t(i) * size_t(cols)], std::min(chunk, m - i), size_t(cols),
             &c[size_t(i) * size_t(rows)], size_t(rows));
    return c;
  };
  const std::vector<float> whole = in_chunks(m, 1);
  for (const int chunk : {1, 2, 3, 4, 5, 7, 64, 70})
    for (const int threads : {1, 2, 3})
      EXPECT_EQ(first_difference(whole, in_chunks(chunk, threads)), -1)
          << chunk << " rows, " << threads << " threads";
}

TEST_P(Gemm, NothingToDo) {
  ThreadPool pool(1);
  const PackedMatrix packed = pack(float_tensor(3, 2, {1, 2, 3, 4, 5, 6}));
  matmul(*kernels_, pool, packed, nullptr, 0, 2, nullptr, 16);
}

KVEVAL_EACH_LEVEL(Gemm);

TEST(PackedMatrix, InterleavesSixteenRowsAndPadsWithZeros) {
  std::vector<float> values(54);
  std::iota(values.begin(), values.end(), 1.f);
  const PackedMatrix packed = pack(float_tensor(18, 3, values));
  EXPECT_EQ(packed.padded_rows(), 32);
  for (int row = 0; row < 32; row++)
    for (int k = 0; k < 3; k++)
      EXPECT_EQ(packed.values.data()[((row / 16) * 3 + k) * 16 + row % 16],
                row < 18 ? values[size_t(row * 3 + k)] : 0.f);
}

}  // namespace
}  // namespace kveval::cpu
