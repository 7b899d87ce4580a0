// What this machine can do at most, measured: what achieved speeds are divided by.
#pragma once

#include "engine/cpu/kernels.h"

namespace kveval::cpu {

struct Ceilings {
  double flops_per_second = 0;  // multiply-adds x 2
  double bytes_per_second = 0;  // read from memory
};

// Of `threads` threads together, by the clock on the wall; the best of many short tries, so that other
// programs cost little. 0.2 to 0.4 s and, for a moment, 256 MB or more. Throws Error{run} when memory runs
// out.
Ceilings measure_ceilings(const Kernels& kernels, int threads);

// Independent chains in registers of the instruction the kernels multiply with: an FMA, a bfloat16 dot
// product, or, at the scalar level on a CPU without FMA, SSE products and sums.
double measure_flops_per_second(const Kernels& kernels, int threads);

// Sums of a buffer that no cache holds, each thread its own part. Throws Error{run} when memory runs out.
double measure_bytes_per_second(int threads);

}  // namespace kveval::cpu
