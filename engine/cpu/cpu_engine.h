// The reference engine: the CPU, every cache profile, the same bits on every machine; float32 arithmetic
// unless asked otherwise.
#pragma once

#include <memory>

#include "engine/compute.h"
#include "engine/engine.h"
#include "engine/model/weights.h"

namespace kveval {

namespace cpu {
struct Kernels;
}

inline constexpr int kMaxChunkTokens = 8192;  // more rows speed nothing up and cost memory

// None of these but `compute` changes a result, only time and memory.
struct CpuEngineOptions {
  int threads = 0;         // 0: one per core this process may use
  int chunk_tokens = 512;  // rows of one forward pass
  int page_tokens = 128;   // 64, 128 or 256
  int max_branches = 0;    // branches advanced together; 0: all
  const cpu::Kernels* kernels =
      nullptr;  // SIMD level; null: the best this CPU has for `compute`, or what KVEVAL_SIMD names
  Compute compute = Compute::float32;  // where `kernels` is null
};

// Throws Error{usage} for options out of range, and for bfloat16 on a CPU that lacks AVX512_BF16.
std::unique_ptr<Engine> make_cpu_engine(std::shared_ptr<const Model> model,
                                        const CpuEngineOptions& options = {});

}  // namespace kveval
