#include "engine/cpu/kernels.h"

#include <cpuid.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/cpu/constants.h"
#include "engine/deterministic_math.h"
#include "engine/error.h"

namespace kveval {

namespace scalar {
extern const cpu::Kernels kernels;
}
namespace avx2 {
extern const cpu::Kernels kernels;
}
namespace avx512 {
extern const cpu::Kernels kernels;
}

namespace cpu {
namespace {

bool has_f16c() {  // older clangs do not know it as a name for __builtin_cpu_supports
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

struct Level {
  const Kernels& kernels;
  bool available;
};

// Best first.
std::array<Level, 3> levels() {
  return {Level{avx512::kernels, has_avx512()}, Level{avx2::kernels, has_avx2()},
          Level{scalar::kernels, true}};
}

}  // namespace

size_t gemm_scratch_floats(int m) { return (size_t(m) + size_t{kGemmPanels} * kLanes) * kGemmDepth; }

float Kernels::log_sum_exp(const float* x, size_t n) const {
  float largest = 0, sum = 0;
  exp_sum(x, n, &largest, &sum);
  return float(double(largest) + det::log(double(sum)));
}

const Kernels& kernels_wanted(const char* wanted) {
  std::string available;
  for (const Level& level : levels()) {
    if (!level.available) continue;
    if (!wanted || std::string_view(wanted).empty() || level.kernels.name == std::string_view(wanted))
      return level.kernels;
    available += available.empty() ? level.kernels.name : std::string(", ") + level.kernels.name;
  }
  const std::string name = wanted;
  const bool exists = name == avx2::kernels.name || name == avx512::kernels.name;
  throw Error(ErrorKind::usage,
              "KVEVAL_SIMD=" + name + (exists ? " names instructions this CPU lacks" : " is no SIMD level"),
              "unset it or set it to one of: " + available);
}

const Kernels& kernels() {
  static const Kernels& best = kernels_wanted(std::getenv("KVEVAL_SIMD"));
  return best;
}

const Kernels* kernels_named(const char* name) {
  for (const Level& level : levels()) {
    if (level.available && level.kernels.name == std::string_view(name)) return &level.kernels;
  }
  return nullptr;
}

}  // namespace cpu
}  // namespace kveval
