// The two kernels in which bfloat16 arithmetic differs from float32 (kernels.h, attention_kernels.h): what
// they multiply. All else of a level serves both.
//
// Every output is still one chain over k in natural order, whatever m: fma(a[k], w[k], sum) with rounded
// operands and with subnormals flushed. That is what vdpbf16ps computes when the earlier k of a pair stands
// in the high half of its dword (0 of 4e6 random triples differ on a Zen 5, and the tests of both kernels
// compare wherever they run), so scalar.cpp remains the definition.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cpu/attention_kernels.h"
#include "engine/cpu/weight_format.h"

namespace kveval::scalar {
void gemm_bf16(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a,
               int m, size_t lda, float* c, size_t ldc, float* scratch);
void attend_span_bf16(const cpu::AttentionRows& rows, const cpu::TileVisit* visits, int count, bool more,
                      const cpu::SpanState& state, float* scratch);
}  // namespace kveval::scalar

// Only on a CPU with AVX512_BF16 and what the avx512 level needs.
namespace kveval::avx512_bf16 {
void gemm_bf16(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a,
               int m, size_t lda, float* c, size_t ldc, float* scratch);
void attend_span_bf16(const cpu::AttentionRows& rows, const cpu::TileVisit* visits, int count, bool more,
                      const cpu::SpanState& state, float* scratch);
}  // namespace kveval::avx512_bf16
