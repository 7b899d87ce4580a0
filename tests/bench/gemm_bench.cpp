// Matrix products at the shapes of small models, one thread. m = 1 walks more weights than any cache holds,
// as decoding does; `bytes_per_second` is then the rate at which they are read.
#include <benchmark/benchmark.h>

#include <string>
#include <utility>
#include <vector>

#include "engine/cpu/packed_matrix.h"
#include "engine/model/weights.h"
#include "engine/random.h"
#include "tests/bench/bench.h"

namespace kveval::bench {
namespace {

void gemm(benchmark::State& state, const cpu::Kernels& kernels, int rows, int cols, int m) {
  const size_t weights = size_t(rows) * size_t(cols);
  const size_t copies = m == 1 ? (size_t(400) << 20) / (weights * sizeof(float)) + 1 : 1;
  Random random(1);
  std::vector<float> values(weights);
  for (float& w : values) w = float(random.uniform() - 0.5);
  const Tensor matrix = float_tensor(rows, cols, std::move(values));
  std::vector<cpu::PackedMatrix> packed;
  for (size_t i = 0; i < copies; i++) packed.push_back(cpu::pack(matrix));
  cpu::Buffer a(size_t(m) * size_t(cols)), c(size_t(m) * size_t(rows)), scratch(cpu::gemm_scratch_floats(m));
  for (size_t i = 0; i < a.size(); i++) a.data()[i] = float(random.uniform() - 0.5);

  const double peak = fma_peak(kernels.name);
  size_t next = 0;
  for (auto _ : state) {
    kernels.gemm(packed[next++ % copies].values.data(), 0, rows, cols, a.data(), m, size_t(cols), c.data(),
                 size_t(rows), scratch.data());
    benchmark::DoNotOptimize(c.data());
  }
  report(state, 2.0 * m * double(weights), peak);
  if (m == 1) state.SetBytesProcessed(int64_t(state.iterations()) * int64_t(weights * sizeof(float)));
}

[[maybe_unused]] const bool registered = [] {
  struct Shape {
    int rows, cols;
  };
  for (const cpu::Kernels* kernels : fast_levels())
    for (const Shape shape : {Shape{960, 576}, Shape{3072, 576}, Shape{576, 1536}, Shape{17920, 1536}})
      for (const int m : {1, 4, 16, 128, 512}) {
        const std::string name = "gemm/" + std::string(kernels->name) +
                                 "/rows:" + std::to_string(shape.rows) +
                                 "/cols:" + std::to_string(shape.cols) + "/m:" + std::to_string(m);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          gemm(state, *kernels, shape.rows, shape.cols, m);
        })->MinTime(0.2);
      }
  return true;
}();

}  // namespace
}  // namespace kveval::bench
