#include "tests/bench/bench.h"

#include <map>

#include "engine/cpu/ceilings.h"
#include "engine/cpu/thread_pool.h"

namespace kveval::bench {

double peak_of(const cpu::Kernels& kernels) {
  static std::map<const cpu::Kernels*, double> known;
  const auto [it, unknown] = known.try_emplace(&kernels, 0.0);
  if (unknown) it->second = cpu::measure_flops_per_second(kernels, 1);
  return it->second;
}

double bandwidth_of(int threads) {
  static std::map<int, double> known;
  const auto [it, unknown] = known.try_emplace(threads, 0.0);
  if (unknown) it->second = cpu::measure_bytes_per_second(threads);
  return it->second;
}

std::vector<int> thread_counts() {
  const int cores = cpu::usable_cores();
  return cores > 1 ? std::vector{1, cores} : std::vector{1};
}

}  // namespace kveval::bench
