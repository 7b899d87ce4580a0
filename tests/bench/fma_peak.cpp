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

#define KVEVAL_FMA(register, n) "vfmadd231ps %%" register "15, %%" register "15, %%" register #n "\n"
#define KVEVAL_TWELVE(r)                                                                                \
  KVEVAL_FMA(r, 0)                                                                                      \
  KVEVAL_FMA(r, 1)                                                                                      \
  KVEVAL_FMA(r, 2)                                                                                      \
  KVEVAL_FMA(r, 3) KVEVAL_FMA(r, 4) KVEVAL_FMA(r, 5) KVEVAL_FMA(r, 6) KVEVAL_FMA(r, 7) KVEVAL_FMA(r, 8) \
      KVEVAL_FMA(r, 9) KVEVAL_FMA(r, 10) KVEVAL_FMA(r, 11)
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
