// Tests that run once per SIMD level, some in bfloat16 arithmetic too, and are skipped, saying why, on a CPU
// that lacks it.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "engine/cpu/kernels.h"

namespace kveval::cpu {

// Names are of levels; "_bf16" behind one asks for its bfloat16 arithmetic.
class EachLevel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const size_t end = name.find("_bf16");
    kernels_ = kernels_named(name.substr(0, end).c_str(),
                             end == std::string::npos ? Compute::float32 : Compute::bfloat16);
    if (!kernels_) GTEST_SKIP() << "this CPU cannot run " << GetParam();
  }
  const Kernels* kernels_ = nullptr;
};

#define KVEVAL_EACH_LEVEL(Fixture)                                                     \
  INSTANTIATE_TEST_SUITE_P(Simd, Fixture, testing::Values("scalar", "avx2", "avx512"), \
                           [](const auto& level) { return std::string(level.param); })

#define KVEVAL_EACH_LEVEL_AND_ARITHMETIC(Fixture)                                                     \
  INSTANTIATE_TEST_SUITE_P(Simd, Fixture,                                                             \
                           testing::Values("scalar", "avx2", "avx512", "scalar_bf16", "avx512_bf16"), \
                           [](const auto& level) { return std::string(level.param); })

// Products and sums as each arithmetic has them, derived apart from the kernels.
struct Arithmetic {
  Compute compute;

  static float flushed(float x) {
    return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x;
  }
  // x where it is multiplied. 8 significant bits: nearbyint() is to nearest even.
  float operand(float x) const {
    if (compute == Compute::float32 || !std::isfinite(x)) return x;
    int exponent = 0;
    const double fraction = std::frexp(double(flushed(x)), &exponent);
    return float(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8));
  }
  // sum + a * b of operands.
  float multiply_add(float a, float b, float sum) const {
    const float result = std::fmaf(a, b, compute == Compute::float32 ? sum : flushed(sum));
    return compute == Compute::float32 ? result : flushed(result);
  }
};

inline uint32_t bits(float x) {
  uint32_t u = 0;
  std::memcpy(&u, &x, sizeof(u));
  return u;
}

// Index of the first value whose bits differ, or -1.
inline int64_t first_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 0;
  for (size_t i = 0; i < a.size(); i++)
    if (bits(a[i]) != bits(b[i])) return int64_t(i);
  return -1;
}

}  // namespace kveval::cpu
