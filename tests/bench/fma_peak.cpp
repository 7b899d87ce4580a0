#include <algorithm>
#include <ctime>
#include <limits>

#include "tests/bench/bench.h"

namespace kveval::bench {
namespace {

double cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

constexpr int kChains = 12, kSteps = 100'000;

#define KVEVAL_FMA(r, n) "vfmadd231ps %%" r "15, %%" r "15, %%" r #n "\n"
#define KVEVAL_FOUR(r, a, b, c, d) KVEVAL_FMA(r, a) KVEVAL_FMA(r, b) KVEVAL_FMA(r, c) KVEVAL_FMA(r, d)
#define KVEVAL_TWELVE(r) KVEVAL_FOUR(r, 0, 1, 2, 3) KVEVAL_FOUR(r, 4, 5, 6, 7) KVEVAL_FOUR(r, 8, 9, 10, 11)
#define KVEVAL_CLOBBERS \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm15"

void chains_256() {
  for (int i = 0; i < kSteps; i++)
    asm volatile("vxorps %%xmm15, %%xmm15, %%xmm15\n" KVEVAL_TWELVE("ymm")::: KVEVAL_CLOBBERS);
}
void chains_512() {
  for (int i = 0; i < kSteps; i++)
    asm volatile("vxorps %%xmm15, %%xmm15, %%xmm15\n" KVEVAL_TWELVE("zmm")::: KVEVAL_CLOBBERS);
}

}  // namespace

double fma_peak(std::string_view level) {
  const bool wide = level == "avx512";
  double best = std::numeric_limits<double>::max();
  for (int i = 0; i < 30; i++) {
    const double begin = cpu_seconds();
    wide ? chains_512() : chains_256();
    best = std::min(best, cpu_seconds() - begin);
  }
  return 2.0 * (wide ? 16 : 8) * kChains * kSteps / best;
}

}  // namespace kveval::bench
