// Weights repacked for the matrix kernels, and the product split over threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/cpu/aligned.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_pool.h"
#include "engine/model/tensor.h"

namespace kveval::cpu {

struct PackedMatrix {
  TensorType type = TensorType::f32;
  int rows = 0, cols = 0;
  Buffer bytes;  // row blocks of 16 rows (weight_format.h), rows beyond `rows` zero

  int padded_rows() const { return (rows + kLanes - 1) / kLanes * kLanes; }
  const uint8_t* row_block(int row) const;  // row: a multiple of 16
  size_t byte_size() const;
};

// matrix: [rows, cols], of any type: its weights keep their values and, nearly, their bytes
// (weight_format.h).
PackedMatrix pack(const Tensor& matrix, ThreadPool& pool);

// c[i][r] = sum over k of a[i][k] * matrix[r][k], one FMA chain each, for i < m and r < rows.
// a: m rows, lda >= cols floats apart. c: m rows, ldc >= rows floats apart; where ldc >= padded_rows() the
// padding columns become zero, else they are left alone.
void matmul(const Kernels& kernels, ThreadPool& pool, const PackedMatrix& matrix, const float* a, int m,
            size_t lda, float* c, size_t ldc);

// Several matrices of as many columns times the same rows, as one job: at m = 1 handing out a job takes as
// long as reading 100 KB of weights.
struct Product {
  const PackedMatrix& matrix;
  float* c;
  size_t ldc;
};
void matmul(const Kernels& kernels, ThreadPool& pool, std::span<const Product> products, const float* a,
            int m, size_t lda);

}  // namespace kveval::cpu
