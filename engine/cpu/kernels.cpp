#include "engine/cpu/kernels.h"

#include <cpuid.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/cpu/bf16_kernels.h"
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

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }

Kernels with_bf16_products(Kernels kernels, decltype(Kernels::gemm) gemm,
                           decltype(AttentionKernels::span) span) {
  kernels.compute = Compute::bfloat16;
  kernels.gemm = gemm;
  kernels.attention.span = span;
  return kernels;
}

struct Level {
  const Kernels& kernels;
  bool available;
};

// Best first, of either arithmetic.
std::array<Level, 5> levels() {
  static const Kernels scalar_bf16 =
      with_bf16_products(scalar::kernels, scalar::gemm_bf16, scalar::attend_span_bf16);
  static const Kernels avx512_bf16 =
      with_bf16_products(avx512::kernels, avx512_bf16::gemm_bf16, avx512_bf16::attend_span_bf16);
  return {Level{avx512::kernels, has_avx512()}, Level{avx2::kernels, has_avx2()},
          Level{scalar::kernels, true}, Level{avx512_bf16, has_avx512_bf16()}, Level{scalar_bf16, true}};
}

[[noreturn]] void refuse_bf16() {
  throw Error(ErrorKind::usage, "this CPU lacks AVX512_BF16, the instructions for bfloat16 arithmetic",
              "use float32, the default; KVEVAL_SIMD=scalar computes the same bits without them, far slower");
}

}  // namespace

size_t gemm_scratch_floats(int m, int cols) {
  const size_t blocks = (size_t(m) + size_t{kGemmPanels} * kLanes) * kGemmDepth;
  const size_t pairs = (size_t(cols) + size_t{2} * kLanes - 1) / (size_t{2} * kLanes) * kLanes;  // of a row
  return m > kGemmFewRows ? blocks : std::max(blocks, size_t(m) * pairs);
}

float Kernels::log_sum_exp(const float* x, size_t n) const {
  float largest = 0, sum = 0;
  exp_sum(x, n, &largest, &sum);
  return float(double(largest) + det::log(double(sum)));
}

const Kernels& kernels_wanted(const char* wanted, Compute compute) {
  const std::string name = wanted ? wanted : "";
  std::string available;
  for (const Level& level : levels()) {
    if (!level.available || level.kernels.compute != compute) continue;
    if (name.empty() && compute == Compute::bfloat16 && level.kernels.name == std::string_view("scalar"))
      refuse_bf16();
    if (name.empty() || level.kernels.name == name) return level.kernels;
    available += available.empty() ? level.kernels.name : std::string(", ") + level.kernels.name;
  }
  if (compute == Compute::bfloat16 && name == avx512::kernels.name) refuse_bf16();
  const bool exists = name == avx2::kernels.name || name == avx512::kernels.name;
  const std::string lacks = compute == Compute::bfloat16 && name == avx2::kernels.name
                                ? " has no bfloat16 arithmetic"
                                : " names instructions this CPU lacks";
  throw Error(ErrorKind::usage, "KVEVAL_SIMD=" + name + (exists ? lacks : " is no SIMD level"),
              "unset it or set it to one of: " + available);
}

const Kernels& kernels(Compute compute) { return kernels_wanted(std::getenv("KVEVAL_SIMD"), compute); }

const Kernels* kernels_named(const char* name, Compute compute) {
  for (const Level& level : levels()) {
    if (level.available && level.kernels.compute == compute && level.kernels.name == std::string_view(name))
      return &level.kernels;
  }
  return nullptr;
}

}  // namespace cpu
}  // namespace kveval
