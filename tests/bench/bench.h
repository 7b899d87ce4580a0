// What the benchmarks divide by, measured in the same process: engine/cpu/ceilings.h.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "engine/cpu/kernels.h"

namespace kveval::bench {

// What of this machine is meant to be fast.
inline std::vector<const cpu::Kernels*> fast_levels() {
  std::vector<const cpu::Kernels*> levels;
  for (const char* name : {"avx512", "avx2"})
    if (const cpu::Kernels* kernels = cpu::kernels_named(name)) levels.push_back(kernels);
  if (const cpu::Kernels* kernels = cpu::kernels_named("avx512", Compute::bfloat16))
    levels.push_back(kernels);
  return levels;
}
inline std::string name_of(const cpu::Kernels& kernels) {
  return kernels.name + std::string(kernels.compute == Compute::bfloat16 ? "_bf16" : "");
}

// FLOP/s of one thread, of the instruction the kernels multiply with; measured at the first use.
double peak_of(const cpu::Kernels& kernels);
// Bytes/s that so many threads read from memory together; measured at the first use.
double bandwidth_of(int threads);

// Shows GFLOP/s, the peak and their ratio. Times are CPU times: other programs cost accuracy, not a factor.
inline void report(benchmark::State& state, double flops, double peak) {
  using benchmark::Counter;
  state.counters["flops"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["peak"] = Counter(peak);
  state.counters["of_peak"] = Counter(flops / peak, Counter::kIsIterationInvariantRate);
}

// The same of what is bound by memory: bytes/s and their share of what so many threads can read. The
// benchmark must go by the clock on the wall (UseRealTime): CPU times are those of one thread.
inline void report_bytes(benchmark::State& state, double bytes, int threads) {
  using benchmark::Counter;
  state.SetBytesProcessed(int64_t(double(state.iterations()) * bytes));
  state.counters["of_bandwidth"] = Counter(bytes / bandwidth_of(threads), Counter::kIsIterationInvariantRate);
}

// One thread, and as many as there are cores.
std::vector<int> thread_counts();

}  // namespace kveval::bench
