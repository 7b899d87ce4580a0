// Tests that run once per SIMD level and are skipped, saying why, on a CPU that lacks it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/cpu/kernels.h"

namespace kveval::cpu {

class EachLevel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    kernels_ = kernels_named(GetParam());
    if (!kernels_) GTEST_SKIP() << "this CPU cannot run " << GetParam();
  }
  const Kernels* kernels_ = nullptr;
};

#define KVEVAL_EACH_LEVEL(Fixture)                                                     \
  INSTANTIATE_TEST_SUITE_P(Simd, Fixture, testing::Values("scalar", "avx2", "avx512"), \
                           [](const auto& level) { return std::string(level.param); })

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
