// The definition of every kernel, as plain loops: the oracle the SIMD levels are tested against, and the
// level for CPUs without AVX2. std::fmaf rounds once on any machine; where an order is part of a result it is
// written out here.
#define KVEVAL_LEVEL scalar

#include <xmmintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/cpu/bf16_kernels.h"
#include "engine/cpu/constants.h"
#include "engine/cpu/level_kernels.h"
#include "engine/kv/codec.h"
#include "engine/model/block_quants.h"

namespace kveval::scalar {
namespace {

using cpu::kExp2;
using cpu::kLanes;
using cpu::kLog2E;
using cpu::kTileKeys;

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// sum[i] += x * y[i], fused. Nearly all time goes here, and std::fmaf is a library call where the compiler
// may not assume the instruction: hence a second copy for CPUs that have it. The loop has no order, both give
// the same bits.
__attribute__((target("avx2,fma"))) void multiply_add_with_fma(float x, const float* y, int n, float* sum) {
  for (int i = 0; i < n; i++) sum[i] = std::fmaf(x, y[i], sum[i]);
}
void multiply_add(float x, const float* y, int n, float* sum) {
  static const bool has_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (has_fma) return multiply_add_with_fma(x, y, n, sum);
  for (int i = 0; i < n; i++) sum[i] = std::fmaf(x, y[i], sum[i]);
}

// 2^x for x < 128.
template <int Count>
float exp2(float x, const float (&coefficients)[Count]) {
  if (!(x >= cpu::kExp2Lowest)) return 0.f;
  const float t = x + cpu::kRound, r = x - (t - cpu::kRound);
  float p = coefficients[Count - 1];
  for (int i = Count - 2; i >= 0; i--) p = std::fmaf(p, r, coefficients[i]);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(t) << 23));
}
float exp2(float x) { return exp2(x, kExp2); }

// ---------------------------------------------------------------------- float32 or bfloat16

// As vdpbf16ps has it whatever the mode: subnormals are read and written as zeros of their sign. For chains
// of products alone: what stands around them (sums of weights) keeps its subnormals.
class FlushSubnormals {
 public:
  FlushSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kReadAsZero); }
  ~FlushSubnormals() { _mm_setcsr(before_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kReadAsZero = 0x0040;
  unsigned before_;
};
struct Nothing {
  Nothing() {}  // not trivial: an unused variable of it is no warning
};

struct Float32 {
  using Mode = Nothing;
  static float operand(float x) { return x; }
  static float exp2(float x) { return scalar::exp2(x, kExp2); }
};
struct Bfloat16 {
  using Mode = FlushSubnormals;
  static float operand(float x) {
    if (std::fabs(x) < std::numeric_limits<float>::min()) return std::copysign(0.f, x);
    return kv::decode_bf16(kv::encode_bf16(x));
  }
  static float exp2(float x) { return scalar::exp2(x, cpu::kExp2Short); }
};

// Lane i + lane i+8, then i + i+4, i + i+2, i + i+1.
float sum_lanes(const float* lanes) {
  float folded[kLanes];
  std::copy_n(lanes, kLanes, folded);
  for (int half = kLanes / 2; half >= 1; half /= 2)
    for (int i = 0; i < half; i++) folded[i] += folded[i + half];
  return folded[0];
}

float largest_of(const float* x, size_t n) {
  float most = kMinusInfinity;
  for (size_t i = 0; i < n; i++) most = std::max(most, x[i]);
  return most;
}

float half_at(const uint8_t* p) { return kv::decode_fp16(uint16_t(p[0] | p[1] << 8)); }

// The bits of row `lane`'s code at k, in a plane of 1, 2 or 4.
int bits_at(const uint8_t* plane, int bits, size_t k, size_t lane) {
  const size_t in_dword = 32 / size_t(bits);
  const int shift = cpu::code_shift(bits, int(k % in_dword));
  return plane[(k / in_dword * kLanes + lane) * 4 + size_t(shift) / 8] >> shift % 8 & ((1 << bits) - 1);
}

// Row `lane`'s code at k of a group.
int code_at(const cpu::WeightLayout& layout, const uint8_t* codes, size_t k, size_t lane) {
  if (layout.bits == 8) return int8_t(codes[k * kLanes + lane]);
  const int low = cpu::low_bits(layout), high = cpu::high_bits(layout);
  int bits = bits_at(codes, low, k, lane);
  if (high > 0) bits |= bits_at(codes + cpu::low_plane_bytes(layout), high, k, lane) << low;
  return cpu::code_value(layout, bits);
}

// Row `lane` of a group of one block: out[k * 16].
void unpack_group(const cpu::WeightLayout& layout, const uint8_t* block, size_t group, size_t lane,
                  float* out) {
  float scale = half_at(block + 2 * lane), offset = layout.offset ? half_at(block + 32 + 2 * lane) : 0.f;
  if (layout.factors) {
    const size_t at = group * kLanes + lane;
    scale *= float(int8_t(block[cpu::factors_at(layout) + at]));
    if (layout.offset) offset *= float(int8_t(block[cpu::offset_factors_at(layout) + at]));
  }
  const uint8_t* codes = block + cpu::codes_at(layout) + group * cpu::group_bytes(layout);
  for (size_t k = 0; k < size_t(layout.group); k++) {
    const int code = code_at(layout, codes, k, lane);
    out[k * kLanes] =
        layout.offset ? weight_with_offset(scale, code, offset) : weight_without_offset(scale, code);
  }
}

// A row block as floats, [cols][16].
void unpack(TensorType type, const uint8_t* block, size_t cols, float* out) {
  const cpu::WeightLayout layout = cpu::layout_of(type);
  if (cpu::is_float(layout))
    return dequantize(type, reinterpret_cast<const std::byte*>(block), cols * kLanes, out);
  const size_t group_floats = size_t(layout.group) * kLanes;
  for (size_t k = 0; k < cols; k += size_t(layout.block), block += cpu::block_bytes(layout))
    for (size_t group = 0; group < size_t(cpu::groups_of(layout)); group++, out += group_floats)
      for (size_t lane = 0; lane < kLanes; lane++) unpack_group(layout, block, group, lane, out + lane);
}

template <class Arithmetic>
void multiply(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a, int m,
              size_t lda, float* c, size_t ldc) {
  const typename Arithmetic::Mode mode;
  const cpu::WeightLayout layout = cpu::layout_of(type);
  std::vector<float> weights(size_t(cols) * kLanes);
  for (int n = n_begin; n < n_end; n += kLanes) {
    const uint8_t* row_block = packed + size_t(n / kLanes) * cpu::row_block_bytes(layout, cols);
    unpack(type, row_block, size_t(cols), weights.data());
    for (float& weight : weights) weight = Arithmetic::operand(weight);
    for (int row = 0; row < m; row++) {
      float* out = c + size_t(row) * ldc + n;
      std::fill_n(out, kLanes, 0.f);
      for (int k = 0; k < cols; k++)
        multiply_add(Arithmetic::operand(a[size_t(row) * lda + size_t(k)]),
                     weights.data() + size_t(k) * kLanes, kLanes, out);
    }
  }
}

}  // namespace

void gemm(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a, int m,
          size_t lda, float* c, size_t ldc, float*) {
  multiply<Float32>(type, packed, n_begin, n_end, cols, a, m, lda, c, ldc);
}
void gemm_bf16(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a,
               int m, size_t lda, float* c, size_t ldc, float*) {
  multiply<Bfloat16>(type, packed, n_begin, n_end, cols, a, m, lda, c, ldc);
}

void rms_norm(const float* x, const float* weight, int n, float epsilon, float* y) {
  float squares[kLanes] = {};
  for (int i = 0; i < n; i++) squares[i % kLanes] = std::fmaf(x[i], x[i], squares[i % kLanes]);
  const float factor = 1.f / std::sqrt(sum_lanes(squares) / float(n) + epsilon);
  for (int i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

void rope_halves(float* x, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = x[i + half];
    x[i] = a * cos[i] - b * sin[i];
    x[i + half] = a * sin[i] + b * cos[i];
  }
}

void rope_interleaved(float* x, const float* cos, const float* sin, int head_dim) {
  for (size_t i = 0; i < size_t(head_dim) / 2; i++) {
    const float a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = a * sin[i] + b * cos[i];
  }
}

void add(float* x, const float* y, size_t n) {
  for (size_t i = 0; i < n; i++) x[i] += y[i];
}

// x * sigmoid(y), y given as -log2(e) * y.
static float times_sigmoid(float x, float power) {
  return x / (1.f + exp2(std::min(power, cpu::kExp2Highest)));
}

void silu_multiply(float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; i++) gate[i] = times_sigmoid(gate[i], gate[i] * -kLog2E) * up[i];
}

void gelu_multiply(float* gate, const float* up, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const float x = gate[i], inner = x * std::fmaf(x * x, cpu::kGeluCubic, 1.f);
    gate[i] = times_sigmoid(x, inner * -cpu::kGeluLog2E) * up[i];
  }
}

void scale(float* x, float factor, size_t n) {
  for (size_t i = 0; i < n; i++) x[i] *= factor;
}

void exp_sum(const float* x, size_t n, float* largest, float* sum) {
  *largest = largest_of(x, n);
  float lanes[kLanes] = {};
  for (size_t i = 0; i < n; i++) lanes[i % kLanes] += exp2((x[i] - *largest) * kLog2E);
  *sum = sum_lanes(lanes);
}

int argmax(const float* x, size_t n) {
  const float* most = std::find(x, x + n, largest_of(x, n));
  return most == x + n ? 0 : int(most - x);
}

// ---------------------------------------------------------------------- attention

namespace {

// A tile's values in the order of its codes.
void decode(Format format, const uint8_t* codes, int n, float* values) {
  for (int i = 0; i < n; i++) values[i] = kv::decode(format, codes + size_t(i) * kv::code_bytes(format));
}

// One row and one tile: keys [head_dim][64], values [64][head_dim], operands already.
template <class Arithmetic>
void attend_tile(int head_dim, const float* q, const float* keys, const float* values, size_t first_key,
                 size_t position, size_t window, float* o, float* m, float* l) {
  float weight[kTileKeys] = {};  // scores first
  {
    const typename Arithmetic::Mode mode;
    for (size_t d = 0; d < size_t(head_dim); d++)
      multiply_add(Arithmetic::operand(q[d]), keys + d * kTileKeys, kTileKeys, weight);
  }
  for (int j = 0; j < kTileKeys; j++) {
    const size_t key = first_key + size_t(j);
    if (key > position || (window != 0 && key + window <= position)) weight[j] = kMinusInfinity;
  }
  const float most = std::max(*m, largest_of(weight, kTileKeys)), correction = Arithmetic::exp2(*m - most);
  *m = most;
  for (float& w : weight) w = Arithmetic::exp2(w - most);
  for (int i = 0; i < kLanes; i++) {
    const float tile_sum = (weight[i] + weight[i + 16]) + (weight[i + 32] + weight[i + 48]);
    l[i] = std::fmaf(l[i], correction, tile_sum);
  }
  const typename Arithmetic::Mode mode;
  for (int d = 0; d < head_dim; d++) o[d] *= correction;
  for (size_t j = 0; j < kTileKeys; j++)
    multiply_add(Arithmetic::operand(weight[j]), values + j * size_t(head_dim), head_dim, o);
}

template <class Arithmetic>
void attend(const cpu::AttentionRows& rows, const cpu::TileVisit* visits, int count,
            const cpu::SpanState& state, float* scratch) {
  const size_t head_dim = size_t(rows.head_dim);
  const int n = rows.head_dim * kTileKeys;
  float *keys = scratch, *values = scratch + n;
  std::fill_n(state.m, rows.rows, kMinusInfinity);
  std::fill_n(state.l, size_t(rows.rows) * kLanes, 0.f);
  std::fill_n(state.o, size_t(rows.rows) * head_dim, 0.f);
  for (const cpu::TileVisit* visit = visits; visit != visits + count; visit++) {
    decode(rows.k_format, visit->k, n, keys);
    decode(rows.v_format, visit->v, n, values);
    if (visit->k_scale)
      for (int i = 0; i < n; i++) keys[i] *= visit->k_scale[i % kTileKeys];
    if (visit->v_scale)
      for (int i = 0; i < n; i++) values[i] *= visit->v_scale[i / rows.head_dim];
    for (float* x = keys; x != keys + size_t{2} * size_t(n); x++) *x = Arithmetic::operand(*x);  // values too
    for (int row = visit->row_begin; row < visit->row_end; row++)
      attend_tile<Arithmetic>(rows.head_dim, rows.q + size_t(row) * head_dim, keys, values, visit->first_key,
                              rows.position[row], rows.window, state.o + size_t(row) * head_dim,
                              state.m + row, state.l + size_t(row) * kLanes);
  }
}

}  // namespace

void attend_span(const cpu::AttentionRows& rows, const cpu::TileVisit* visits, int count, bool,
                 const cpu::SpanState& state, float* scratch) {
  attend<Float32>(rows, visits, count, state, scratch);
}
void attend_span_bf16(const cpu::AttentionRows& rows, const cpu::TileVisit* visits, int count, bool,
                      const cpu::SpanState& state, float* scratch) {
  attend<Bfloat16>(rows, visits, count, state, scratch);
}

void merge_span(int rows, int head_dim, const cpu::SpanState& span, const cpu::MergedState& total) {
  for (int row = 0; row < rows; row++) {
    if (span.m[row] == kMinusInfinity) continue;  // saw nothing of this span
    const float most = std::max(total.m[row], span.m[row]);
    const float left = exp2(total.m[row] - most), right = exp2(span.m[row] - most);
    const float* o = span.o + size_t(row) * size_t(head_dim);
    float* out = total.o + size_t(row) * size_t(head_dim);
    for (int d = 0; d < head_dim; d++) out[d] = std::fmaf(o[d], right, out[d] * left);
    total.l[row] = std::fmaf(sum_lanes(span.l + size_t(row) * kLanes), right, total.l[row] * left);
    total.m[row] = most;
  }
}

void finish_row(int head_dim, const float* o, float l, float* out) {
  const float inverse = 1.f / l;
  for (int d = 0; d < head_dim; d++) out[d] = std::fmaf(o[d], inverse, 0.f);
}

// ---------------------------------------------------------------------- table

extern const cpu::Kernels kernels;
const cpu::Kernels kernels = {
    .name = "scalar",
    .gemm = gemm,
    .rms_norm = rms_norm,
    .rope_halves = rope_halves,
    .rope_interleaved = rope_interleaved,
    .add = add,
    .silu_multiply = silu_multiply,
    .gelu_multiply = gelu_multiply,
    .scale = scale,
    .exp_sum = exp_sum,
    .argmax = argmax,
    .attention = {.span = attend_span, .merge = merge_span, .finish = finish_row},
    .encode_row = kv::scalar::encode_row,
};

}  // namespace kveval::scalar
