// What the benchmarks divide by: the float32 FMA rate of one core, measured in the same process just before.
#pragma once

#include <benchmark/benchmark.h>

#include <string_view>
#include <vector>

#include "engine/cpu/kernels.h"

namespace kveval::bench {

// The SIMD levels of this machine that are meant to be fast.
inline std::vector<const cpu::Kernels*> fast_levels() {
  std::vector<const cpu::Kernels*> levels;
  for (const char* name : {"avx512", "avx2"})
    if (const cpu::Kernels* kernels = cpu::kernels_named(name)) levels.push_back(kernels);
  return levels;
}

// FLOP/s of twelve independent FMA chains in registers.
double fma_peak(std::string_view level);

// Shows GFLOP/s, the peak and their ratio. Times are CPU times: other programs cost accuracy, not a factor.
inline void report(benchmark::State& state, double flops, double peak) {
  using benchmark::Counter;
  state.counters["flops"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["peak"] = Counter(peak);
  state.counters["of_peak"] = Counter(flops / peak, Counter::kIsIterationInvariantRate);
}

}  // namespace kveval::bench
