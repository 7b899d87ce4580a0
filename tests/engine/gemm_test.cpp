#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/cpu/packed_matrix.h"
#include "engine/model/weights.h"
#include "engine/random.h"
#include "tests/engine/levels.h"
#include "tests/engine/random_tensor.h"

namespace kveval::cpu {
namespace {

std::vector<float> random_values(Random& random, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = float(random.uniform() - 0.5);
  return values;
}

// Straight from the sentence in kernels.h.
float one_chain(Compute compute, const float* a, const float* w, int n) {
  const Arithmetic arithmetic{compute};
  float sum = 0;
  for (int k = 0; k < n; k++)
    sum = arithmetic.multiply_add(arithmetic.operand(a[k]), arithmetic.operand(w[k]), sum);
  return sum;
}

int log_uniform(Random& random, int most) { return int(std::pow(double(most) + 0.99, random.uniform())); }

class Gemm : public EachLevel {};

TEST_P(Gemm, EveryOutputIsOneChainForAnyShape) {
  Random random(7);
  ThreadPool one(1), two(2);
  constexpr float kGuard = 1234.5f;
  for (int trial = 0; trial < 60; trial++) {
    const int m = trial < 8 ? trial + 1 : log_uniform(random, 600);
    const int cols = trial % 10 == 0 ? 1 : 1 + int(random.below(trial % 3 == 0 ? 1000 : 90));
    const int rows = 1 + int(random.below(uint64_t(std::min(700, 1 + 20'000'000 / m / cols))));
    const size_t lda = size_t(cols) + random.below(4);
    const std::vector<float> weights = random_values(random, size_t(rows) * size_t(cols));
    const PackedMatrix packed = pack(float_tensor(rows, cols, weights), two);
    // Rows that leave no room for padding columns, and rows that do.
    const size_t ldc =
        random.below(2) == 0 ? size_t(rows) + random.below(3) : size_t(packed.padded_rows()) + 2;
    const std::vector<float> a = random_values(random, size_t(m) * lda);
    std::vector<float> c(size_t(m) * ldc, kGuard);
    matmul(*kernels_, trial % 2 == 0 ? one : two, packed, a.data(), m, lda, c.data(), ldc);

    const size_t written = ldc >= size_t(packed.padded_rows()) ? size_t(packed.padded_rows()) : size_t(rows);
    const auto check = [&](int i, size_t n) {
      const float expected = n < size_t(rows) ? one_chain(kernels_->compute, &a[size_t(i) * lda],
                                                          &weights[n * size_t(cols)], cols)
                             : n < written    ? 0.f
                                              : kGuard;
      ASSERT_EQ(bits(c[size_t(i) * ldc + n]), bits(expected))
          << "row " << i << " of " << m << ", column " << n << " of " << rows << ", " << cols << " deep";
    };
    for (int sample = 0; sample < 300; sample++) check(int(random.below(size_t(m))), random.below(ldc));
    for (size_t n = 0; n < ldc; n++) check(m - 1, n);
  }
}

// Packed weights are worth what dequantize_row says, whatever m and whichever columns are asked for.
TEST_P(Gemm, WeightsOfEveryTypeKeepTheirBits) {
  Random random(9);
  ThreadPool one(1), three(3);
  for (int trial = 0; trial < 8 * kTensorTypes; trial++) {
    const auto type = TensorType(trial % kTensorTypes);
    const int block = info_of(type).block_elements, m = trial < kTensorTypes ? 1 : log_uniform(random, 80);
    const int cols =
        block == 1 ? 1 + int(random.below(700)) : block * (1 + int(random.below(block == 32 ? 24 : 4)));
    const int rows = 1 + int(random.below(100));
    const Tensor matrix = random_tensor(random, type, rows, cols);
    std::vector<float> weights(size_t(rows) * size_t(cols));
    for (int row = 0; row < rows; row++) dequantize_row(matrix, row, &weights[size_t(row) * size_t(cols)]);

    const PackedMatrix packed = pack(matrix, trial % 2 == 0 ? one : three);
    const std::vector<float> a = random_values(random, size_t(m) * size_t(cols));
    std::vector<float> expected(size_t(m) * size_t(packed.padded_rows()), 0.f);
    const size_t ldc = size_t(packed.padded_rows());
    for (size_t i = 0; i < size_t(m); i++)
      for (size_t n = 0; n < size_t(rows); n++)
        expected[i * ldc + n] =
            one_chain(kernels_->compute, &a[i * size_t(cols)], &weights[n * size_t(cols)], cols);
    const std::string what = std::string(info_of(type).name) + ": " + std::to_string(m) + " rows, " +
                             std::to_string(cols) + " deep, " + std::to_string(rows) + " wide";

    std::vector<float> c(expected.size());
    matmul(*kernels_, three, packed, a.data(), m, size_t(cols), c.data(), ldc);
    ASSERT_EQ(first_difference(c, expected), -1) << what;

    const int begin = int(random.below(ldc / kLanes)) * kLanes;
    const int end = begin + (1 + int(random.below((ldc - size_t(begin)) / kLanes))) * kLanes;
    Buffer scratch(gemm_scratch_floats(m, cols));
    std::fill_n(c.begin(), c.size(), 7.f);
    kernels_->gemm(packed.type, packed.row_block(0), begin, end, cols, a.data(), m, size_t(cols), c.data(),
                   ldc, scratch.data());
    for (size_t i = 0; i < expected.size(); i++) {
      const bool asked = int(i % ldc) >= begin && int(i % ldc) < end;
      ASSERT_EQ(bits(c[i]), bits(asked ? expected[i] : 7.f))
          << what << ", columns " << begin << " to " << end;
    }
  }
}

// As the forward pass calls it: a chunk of any size gives a token the same bits.
TEST_P(Gemm, ChunksAndThreadsDoNotMatter) {
  Random random(8);
  ThreadPool packer(1);
  const int cols = 512, m = 70;
  for (const auto& [type, rows] : {std::pair(TensorType::f32, 800), std::pair(TensorType::q4_k, 270)}) {
    const PackedMatrix packed = pack(random_tensor(random, type, rows, cols), packer);
    const std::vector<float> a = random_values(random, size_t(m) * size_t(cols));
    const auto in_chunks = [&, width = size_t(rows)](int chunk, int threads) {
      ThreadPool pool(threads);
      std::vector<float> c(size_t(m) * width);
      for (int i = 0; i < m; i += chunk)
        matmul(*kernels_, pool, packed, &a[size_t(i) * size_t(cols)], std::min(chunk, m - i), size_t(cols),
               &c[size_t(i) * width], width);
      return c;
    };
    const std::vector<float> whole = in_chunks(m, 1);
    for (const int chunk : {1, 2, 3, 4, 5, 7, 64, 70})
      for (const int threads : {1, 2, 3})
        EXPECT_EQ(first_difference(whole, in_chunks(chunk, threads)), -1)
            << info_of(type).name << ", " << chunk << " rows, " << threads << " threads";
  }
}

TEST_P(Gemm, NothingToDo) {
  ThreadPool pool(1);
  const PackedMatrix packed = pack(float_tensor(3, 2, {1, 2, 3, 4, 5, 6}), pool);
  matmul(*kernels_, pool, packed, nullptr, 0, 2, nullptr, 16);
}

// Numbers around the smallest normal one, operands and products alike: bfloat16 arithmetic reads and writes
// what lies below as zeros of its sign, float32 keeps it.
TEST_P(Gemm, TinyNumbersAreKeptOrFlushed) {
  Random random(10);
  ThreadPool pool(1);
  const auto tiny = [&random](int from, int to) {
    return float(std::ldexp(random.uniform() - 0.5, from + int(random.below(uint64_t(to - from)))));
  };
  for (const int m : {1, 7, 40}) {
    const int rows = 48, cols = 90;
    std::vector<float> weights(size_t(rows) * size_t(cols)), a(size_t(m) * size_t(cols));
    for (size_t i = 0; i < weights.size(); i++) weights[i] = i % 3 == 0 ? tiny(-130, -122) : tiny(-66, -58);
    for (size_t i = 0; i < a.size(); i++) a[i] = i % 5 == 0 ? tiny(-130, -122) : tiny(-66, -58);
    const PackedMatrix packed = pack(float_tensor(rows, cols, weights), pool);
    std::vector<float> c(size_t(m) * size_t(rows));
    matmul(*kernels_, pool, packed, a.data(), m, size_t(cols), c.data(), size_t(rows));
    for (size_t i = 0; i < c.size(); i++)
      ASSERT_EQ(bits(c[i]), bits(one_chain(kernels_->compute, &a[i / size_t(rows) * size_t(cols)],
                                           &weights[i % size_t(rows) * size_t(cols)], cols)))
          << m << " rows, output " << i;
  }
}

KVEVAL_EACH_LEVEL_AND_ARITHMETIC(Gemm);

TEST(PackedMatrix, InterleavesSixteenRowsAndPadsWithZeros) {
  std::vector<float> values(54);
  std::iota(values.begin(), values.end(), 1.f);
  ThreadPool pool(1);
  const PackedMatrix packed = pack(float_tensor(18, 3, values), pool);
  EXPECT_EQ(packed.padded_rows(), 32);
  for (int row = 0; row < 32; row++)
    for (int k = 0; k < 3; k++)
      EXPECT_EQ(packed.bytes.data()[((row / 16) * 3 + k) * 16 + row % 16],
                row < 18 ? values[size_t(row * 3 + k)] : 0.f);
}

// A model's memory is its file's, nearly: the bound a reader of weight_format.h may rely on.
TEST(PackedMatrix, StaysNearTheSizeOfTheFile) {
  Random random(3);
  ThreadPool pool(1);
  for (int i = 0; i < kTensorTypes; i++) {
    const auto type = TensorType(i);
    const Tensor matrix = random_tensor(random, type, 32, 512);
    const double ratio = double(pack(matrix, pool).byte_size()) / double(matrix.data.size());
    const double most = type == TensorType::q3_k   ? 1.35
                        : type == TensorType::q2_k ? 1.2
                        : type == TensorType::q4_k || type == TensorType::q5_k || type == TensorType::q6_k
                            ? 1.03
                            : 1.0;
    EXPECT_LE(ratio, most) << info_of(type).name;
  }
}

}  // namespace
}  // namespace kveval::cpu
