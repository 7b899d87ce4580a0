#include <algorithm>
#include <ctime>
#include <limits>
#include <string_view>

#include "tests/bench/bench.h"

namespace kveval::bench {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

constexpr int kChains = 12, kSteps = 100'000;

#define KVEVAL_STEP(op, r, n) op " %%" r "15, %%" r "15, %%" r #n "\n"
#define KVEVAL_THREE(op, r, a, b, c) KVEVAL_STEP(op, r, a) KVEVAL_STEP(op, r, b) KVEVAL_STEP(op, r, c)
#define KVEVAL_TWELVE(op, r)   \
  KVEVAL_THREE(op, r, 0, 1, 2) \
  KVEVAL_THREE(op, r, 3, 4, 5) KVEVAL_THREE(op, r, 6, 7, 8) KVEVAL_THREE(op, r, 9, 10, 11)
#define KVEVAL_CLOBBERS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm15"

void chains_256() {
  for (int i = 0; i < kSteps; i++)
    asm volatile("vxorps %%xmm15, %%xmm15, %%xmm15\n" KVEVAL_TWELVE("vfmadd231ps", "ymm")::: KVEVAL_CLOBBERS);
}
void chains_512() {
  for (int i = 0; i < kSteps; i++)
    asm volatile("vxorps %%xmm15, %%xmm15, %%xmm15\n" KVEVAL_TWELVE("vfmadd231ps", "zmm")::: KVEVAL_CLOBBERS);
}
void dots_512() {
  for (int i = 0; i < kSteps; i++)
    asm volatile("vxorps %%xmm15, %%xmm15, %%xmm15\n" KVEVAL_TWELVE("vdpbf16ps", "zmm")::: KVEVAL_CLOBBERS);
}

}  // namespace

double peak_of(const cpu::Kernels& kernels) {
  const bool wide = std::string_view(kernels.name) == "avx512",
             bfloat16 = kernels.compute == Compute::bfloat16;
  const auto chains = bfloat16 ? dots_512 : wide ? chains_512 : chains_256;
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < 30; i++) {
    const double begin = cpu_seconds();
    chains();
    best = std::min(best, cpu_seconds() - begin);
  }
  return 2.0 * (bfloat16 ? 32 : wide ? 16 : 8) * kChains * kSteps / best;
}

}  // namespace kveval::bench
