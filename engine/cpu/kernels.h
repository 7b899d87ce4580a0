// The one dispatch point between SIMD levels, and between float32 and bfloat16 arithmetic. For one arithmetic
// every level gives the same bits: `scalar` is the definition, written to be read; avx2 and avx512 are one
// source over vectors of 16 float lanes, compiled twice (design: a zmm or two ymm).
//
// A bfloat16 table is its level's float32 table with other products (bf16_kernels.h). There are two:
// scalar, and avx512 on CPUs that have AVX512_BF16.
//
// Rules that make it so: every product-sum is a chain of fused multiply-adds in a stated order; horizontal
// sums and maxima run over 16 virtual lanes and fold in one fixed tree (l[i] + l[i+8], then +4, +2, +1); exp2
// is our own polynomial; nothing is contracted by the compiler (-ffp-contract=off).
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compute.h"
#include "engine/cpu/attention_kernels.h"
#include "engine/cpu/weight_format.h"
#include "engine/kv/codec_kernels.h"

namespace kveval::cpu {

inline constexpr int kLanes = 16;  // also the row interleave of packed weights

struct Kernels {
  const char* name;  // "scalar" | "avx2" | "avx512"
  Compute compute = Compute::float32;

  // c[m][n] for n in [n_begin, n_end), both multiples of 16: one FMA chain over k = 0 .. cols-1 per output,
  // whatever m. packed: row blocks of 16 output rows from row 0 on, cols a multiple of the format's block
  // (weight_format.h). a: m rows, lda floats apart. c: m rows, ldc >= n_end floats apart. scratch:
  // gemm_scratch_floats(m, cols) floats, 64-byte aligned, one per thread.
  void (*gemm)(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a,
               int m, size_t lda, float* c, size_t ldc, float* scratch);

  // y = x / sqrt(mean(x^2) + epsilon) * weight; the sum of squares runs in 16 lanes. y may be x.
  void (*rms_norm)(const float* x, const float* weight, int n, float epsilon, float* y);
  // Rotates one head in place. cos, sin: [head_dim / 2].
  void (*rope_halves)(float* x, const float* cos, const float* sin, int head_dim);
  void (*rope_interleaved)(float* x, const float* cos, const float* sin, int head_dim);
  void (*add)(float* x, const float* y, size_t n);                // x += y
  void (*silu_multiply)(float* gate, const float* up, size_t n);  // gate = gate * sigmoid(gate) * up
  // gate = gelu(gate) * up with GELU's tanh form: x * sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)).
  void (*gelu_multiply)(float* gate, const float* up, size_t n);
  void (*scale)(float* x, float factor, size_t n);  // x *= factor
  // The largest x, and the sum over 16 lanes of exp(x - largest).
  void (*exp_sum)(const float* x, size_t n, float* largest, float* sum);
  int (*argmax)(const float* x, size_t n);  // lowest index among equals

  AttentionKernels attention;
  kv::EncodeRow encode_row;  // kv/codec_kernels.h

  // log(sum(exp(x))), natural. The logarithm is det::log: float64, outside what is compiled per level.
  float log_sum_exp(const float* x, size_t n) const;
};

size_t gemm_scratch_floats(int m, int cols);

// The best level this CPU has, or the one KVEVAL_SIMD=scalar|avx2|avx512 names. Throws Error{usage} when the
// variable names a level this CPU lacks or no level at all, and for bfloat16 on a CPU that lacks AVX512_BF16,
// unless the variable asks for scalar, which is for tests: far too slow for a suite.
const Kernels& kernels(Compute compute = Compute::float32);
// What kernels() would be if KVEVAL_SIMD were `wanted`; null or empty: not set.
const Kernels& kernels_wanted(const char* wanted, Compute compute = Compute::float32);
// Null: not this CPU, or no such level in this arithmetic.
const Kernels* kernels_named(const char* name, Compute compute = Compute::float32);

}  // namespace kveval::cpu
