// The small steps between matrix products. Where lanes are part of a definition (rms_norm, exp_sum) the order
// is that of scalar.cpp; the plain loops have no order to keep and are left to the compiler's vectoriser.
#include <cstring>

#include "engine/cpu/level_kernels.h"
#include "engine/cpu/simd.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

// x[0 .. count), then `filler`, count < 16.
V load_tail(const float* x, size_t count, float filler) {
  float lanes[16];
  store(lanes, splat(filler));
  std::memcpy(lanes, x, count * sizeof(float));
  return load(lanes);
}

}  // namespace

void rms_norm(const float* x, const float* weight, int n, float epsilon, float* y) {
  V squares = zero();
  int i = 0;
  for (; i + 16 <= n; i += 16) squares = fma(load(x + i), load(x + i), squares);
  if (i < n) {
    const V tail = load_tail(x + i, size_t(n - i), 0.f);
    squares = fma(tail, tail, squares);
  }
  const float root = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(sum(squares) / float(n) + epsilon)));
  const float factor = 1.f / root;
  for (i = 0; i < n; i++) y[i] = x[i] * factor * weight[i];
}

void rope_halves(float* x, const float* cos, const float* sin, int head_dim) {
  const int half = head_dim / 2;
  float* second = x + half;
  for (int i = 0; i < half; i++) {
    const float a = x[i], b = second[i];
    x[i] = a * cos[i] - b * sin[i];
    second[i] = a * sin[i] + b * cos[i];
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

void scale(float* x, float factor, size_t n) {
  for (size_t i = 0; i < n; i++) x[i] *= factor;
}

namespace {

// x * sigmoid(y), y given as -log2(e) * y.
V times_sigmoid(V x, V power) { return div(x, add(splat(1.f), exp2(min(power, splat(cpu::kExp2Highest))))); }
struct Silu {
  KVEVAL_INLINE V apply(V x) { return times_sigmoid(x, mul(x, splat(-cpu::kLog2E))); }
};
struct Gelu {
  KVEVAL_INLINE V apply(V x) {
    const V inner = mul(x, fma(mul(x, x), splat(cpu::kGeluCubic), splat(1.f)));
    return times_sigmoid(x, mul(inner, splat(-cpu::kGeluLog2E)));
  }
};

template <class Activation>
void activate_multiply(float* gate, const float* up, size_t n) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store(gate + i, mul(Activation::apply(load(gate + i)), load(up + i)));
  if (i < n) {
    float lanes[16];
    store(lanes, mul(Activation::apply(load_tail(gate + i, n - i, 0.f)), load_tail(up + i, n - i, 0.f)));
    std::memcpy(gate + i, lanes, (n - i) * sizeof(float));
  }
}

}  // namespace

void silu_multiply(float* gate, const float* up, size_t n) { activate_multiply<Silu>(gate, up, n); }
void gelu_multiply(float* gate, const float* up, size_t n) { activate_multiply<Gelu>(gate, up, n); }

void exp_sum(const float* x, size_t n, float* most, float* total) {
  V highest = splat(kMinusInfinity);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) highest = max(load(x + i), highest);
  if (i < n) highest = max(load_tail(x + i, n - i, kMinusInfinity), highest);
  *most = largest(highest);

  const V base = splat(*most), log2e = splat(cpu::kLog2E);
  V sums = zero();
  for (i = 0; i + 16 <= n; i += 16) sums = add(sums, exp2(mul(sub(load(x + i), base), log2e)));
  if (i < n) sums = add(sums, exp2(mul(sub(load_tail(x + i, n - i, kMinusInfinity), base), log2e)));
  *total = sum(sums);
}

int argmax(const float* x, size_t n) {
  V highest = splat(kMinusInfinity);
  size_t i = 0;
  for (; i + 16 <= n; i += 16) highest = max(load(x + i), highest);
  if (i < n) highest = max(load_tail(x + i, n - i, kMinusInfinity), highest);
  const float most = largest(highest);
  for (i = 0; i < n; i++)
    if (x[i] == most) return int(i);
  return 0;
}

}  // namespace kveval::KVEVAL_LEVEL
