// What one SIMD level defines. Included with KVEVAL_LEVEL set (scalar.cpp sets it itself); what each function
// computes is said in kernels.h and attention_kernels.h.
#pragma once

#include <cstddef>

#include "engine/cpu/kernels.h"

namespace kveval::KVEVAL_LEVEL {

void gemm(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a, int m,
          size_t lda, float* c, size_t ldc, float* scratch);

void rms_norm(const float* x, const float* weight, int n, float epsilon, float* y);
void rope_halves(float* x, const float* cos, const float* sin, int head_dim);
void rope_interleaved(float* x, const float* cos, const float* sin, int head_dim);
void add(float* x, const float* y, size_t n);
void silu_multiply(float* gate, const float* up, size_t n);
void gelu_multiply(float* gate, const float* up, size_t n);
void scale(float* x, float factor, size_t n);
void exp_sum(const float* x, size_t n, float* largest, float* sum);
int argmax(const float* x, size_t n);

void attend_span(const cpu::AttentionRows& rows, const cpu::TileVisit* visits, int count, bool more,
                 const cpu::SpanState& state, float* scratch);
void merge_span(int rows, int head_dim, const cpu::SpanState& span, const cpu::MergedState& total);
void finish_row(int head_dim, const float* o, float l, float* out);

}  // namespace kveval::KVEVAL_LEVEL
