#include "engine/cpu/ceilings.h"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/cpu/aligned.h"
#include "engine/cpu/thread_pool.h"

namespace kveval::cpu {
namespace {

using Clock = std::chrono::steady_clock;

// ---- arithmetic

constexpr int kChains = 12;  // enough to hide an FMA's latency of 4 to 5 cycles at two instructions a cycle
constexpr int kDotChains = 16;  // a dot product takes longer: 12 reach 0.92 of what 16 and 28 do
constexpr long kSteps = 2000;

// Twelve registers, each its own chain; the loop starts from zeros, since subnormal garbage would be slow.
#define KVEVAL_EACH(op, source, r)                                                                     \
  op " " source ", %%" r "0\n" op " " source ", %%" r "1\n" op " " source ", %%" r "2\n" op " " source \
     ", %%" r "3\n" op " " source ", %%" r "4\n" op " " source ", %%" r "5\n" op " " source ", %%" r   \
     "6\n" op " " source ", %%" r "7\n" op " " source ", %%" r "8\n" op " " source ", %%" r "9\n" op   \
     " " source ", %%" r "10\n" op " " source ", %%" r "11\n"
#define KVEVAL_ZERO(r) "xorps %%xmm" r ", %%xmm" r "\n"
#define KVEVAL_ZEROS \
  KVEVAL_ZERO("0")   \
  KVEVAL_ZERO("1")   \
  KVEVAL_ZERO("2")   \
  KVEVAL_ZERO("3")   \
  KVEVAL_ZERO("4")   \
  KVEVAL_ZERO("5")   \
  KVEVAL_ZERO("6")   \
  KVEVAL_ZERO("7") KVEVAL_ZERO("8") KVEVAL_ZERO("9") KVEVAL_ZERO("10") KVEVAL_ZERO("11") KVEVAL_ZERO("15")
// The other four of the dot products; a compiler of this file that knew them would not keep anything there.
#define KVEVAL_FOUR_MORE(op, source)                                                                \
  op " " source ", %%zmm16\n" op " " source ", %%zmm17\n" op " " source ", %%zmm18\n" op " " source \
     ", %%zmm19\n"
#define KVEVAL_LOOP(body, end)                                                                         \
  long steps = kSteps;                                                                                 \
  asm volatile(KVEVAL_ZEROS "1:\n" body "dec %0\njnz 1b\n" end                                         \
               : "+r"(steps)                                                                           \
               :                                                                                       \
               : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
                 "xmm10", "xmm11", "xmm15")

void fma_256() { KVEVAL_LOOP(KVEVAL_EACH("vfmadd231ps", "%%ymm15, %%ymm15", "ymm"), "vzeroupper\n"); }
void fma_512() { KVEVAL_LOOP(KVEVAL_EACH("vfmadd231ps", "%%zmm15, %%zmm15", "zmm"), "vzeroupper\n"); }
void dot_512() {
  KVEVAL_LOOP(KVEVAL_EACH("vdpbf16ps", "%%zmm15, %%zmm15", "zmm")
                  KVEVAL_FOUR_MORE("vdpbf16ps", "%%zmm15, %%zmm15"),
              "vzeroupper\n");
}
// What a multiply-add costs without FMA: a product and a sum. scalar.cpp uses FMA where there is one.
void sse() { KVEVAL_LOOP(KVEVAL_EACH("mulps", "%%xmm15", "xmm") KVEVAL_EACH("addps", "%%xmm15", "xmm"), ""); }

struct Chains {
  void (*run)();
  double flops;  // of one run
};

Chains chains_of(const Kernels& kernels) {
  constexpr double kInstructions = double(kChains) * kSteps;
  const std::string_view level = kernels.name;
  const bool fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (level == "scalar" && !fma) return {sse, 2 * 4 * kInstructions};
  if (level == "avx512" && kernels.compute == Compute::bfloat16)
    return {dot_512, 2.0 * 32 * kDotChains * kSteps};
  if (level == "avx512") return {fma_512, 2 * 16 * kInstructions};
  return {fma_256, 2 * 8 * kInstructions};
}

// ---- memory

constexpr size_t kLeastBytes = size_t(256) << 20;
constexpr size_t kPieceBytes = size_t(64) << 10;
constexpr size_t kBytesPerCore = size_t(16) << 20;  // the largest caches hold 12 MB a core

// What a thread has of the buffer, read round and round.
struct Part {
  const char* data = nullptr;
  size_t bytes = 0, at = 0;
  uint64_t sum = 0;  // somebody has to want what is read; wraps around

  // Reads kPieceBytes more.
  double read() {
    constexpr size_t kAhead = 4096;  // worth 10 %
    __m128i sums[4] = {};            // so that reads wait for memory alone
    for (const char* p = data + at; p < data + at + kPieceBytes; p += 64) {
      _mm_prefetch(p + kAhead, _MM_HINT_T0);
      for (size_t i = 0; i < 4; i++)
        sums[i] = _mm_add_epi64(sums[i], _mm_load_si128(reinterpret_cast<const __m128i*>(p) + i));
    }
    for (const __m128i& s : sums) sum += uint64_t(_mm_cvtsi128_si64(s));
    at = (at + kPieceBytes) % bytes;
    return double(kPieceBytes);
  }
};

// ---- threads

// One window of time, long enough for thousands of steps and shorter than a time slice.
constexpr auto kWindow = std::chrono::milliseconds(1);

// What all threads get done a second: each calls step(thread), which returns how much it did, until a window
// of time has passed that opens when all are there. A thread that another program holds up counts less and
// holds up nobody.
double rate_of(ThreadPool& pool, const std::function<double(int thread)>& step) {
  const int threads = pool.size();
  std::atomic<int> missing{threads};
  std::atomic<Clock::time_point> open{};
  std::vector<double> done(size_t(threads), 0.0);
  pool.run(threads, [&](int, int thread) {
    if (--missing == 0) open = Clock::now();
    for (int spins = 1; open.load() == Clock::time_point{}; spins++) {
      _mm_pause();
      if (spins % 1000 == 0) std::this_thread::yield();
    }
    double sum = 0;
    Clock::duration passed{};
    while (passed < kWindow) {
      sum += step(thread);
      passed = Clock::now() - open.load();
    }
    done[size_t(thread)] = sum / std::chrono::duration<double>(passed).count();
  });
  return std::accumulate(done.begin(), done.end(), 0.0);
}

// The best of 80 windows, or of as many as fit into 120 ms where threads wait for a core.
double best_rate_of(ThreadPool& pool, const std::function<double(int thread)>& step) {
  const auto deadline = Clock::now() + std::chrono::milliseconds(120);
  double best = 0;
  for (int i = 0; i < 80 && (i == 0 || Clock::now() < deadline); i++)
    best = std::max(best, rate_of(pool, step));
  return best;
}

}  // namespace

double measure_flops_per_second(const Kernels& kernels, int threads) {
  ThreadPool pool(threads);
  const Chains chains = chains_of(kernels);
  return best_rate_of(pool, [&](int) {
    chains.run();
    return chains.flops;
  });
}

double measure_bytes_per_second(int wanted) {
  // More threads than cores would take turns, each with its small part in the caches.
  const int threads = std::min(wanted, usable_cores());
  ThreadPool pool(threads);
  const size_t bytes =  // of each thread
      std::max(kLeastBytes, kBytesPerCore * size_t(threads)) / size_t(threads) / kPieceBytes * kPieceBytes;
  Buffer buffer(bytes * size_t(threads) / sizeof(float));
  std::vector<Part> parts(size_t(threads), Part{});
  // Written first by whoever reads it: pages that were never written are all the same one.
  rate_of(pool, [&](int thread) {
    Part& part = parts[size_t(thread)];
    if (part.data != nullptr) return 0.0;
    char* const data = reinterpret_cast<char*>(buffer.data()) + size_t(thread) * bytes;
    std::memset(data, 1, bytes);
    part.data = data;
    part.bytes = bytes;
    return 0.0;
  });
  const double best = best_rate_of(pool, [&](int thread) { return parts[size_t(thread)].read(); });
  uint64_t sum = 0;
  for (const Part& part : parts) sum += part.sum;
  asm volatile("" : : "r"(sum));
  return best;
}

Ceilings measure_ceilings(const Kernels& kernels, int threads) {
  return {measure_flops_per_second(kernels, threads), measure_bytes_per_second(threads)};
}

}  // namespace kveval::cpu
