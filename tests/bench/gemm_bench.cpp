// Matrix products at the shapes of small models, one thread, by weight format. m = 1 walks more weights than
// any cache holds, as decoding does; `bytes_per_second` is then the rate at which packed bytes are read.
#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cpu/packed_matrix.h"
#include "engine/model/tensor.h"
#include "engine/random.h"
#include "tests/bench/bench.h"

namespace kveval::bench {
namespace {

struct Shape {
  int rows, cols;
};

// Any bytes will do, so long as no product is subnormal or infinite.
Tensor matrix_of(TensorType type, Shape shape) {
  Tensor tensor{"matrix", type, {shape.rows, shape.cols}, {}, nullptr};
  auto data = std::make_shared<std::vector<std::byte>>(size_t(shape.rows) * row_bytes(tensor));
  Random random(1);
  for (std::byte& b : *data) b = std::byte(0x28 | random.below(8));
  tensor.data = *data;
  tensor.owner = std::move(data);
  return tensor;
}

void gemm(benchmark::State& state, const cpu::Kernels& kernels, TensorType type, Shape shape, int m) {
  const auto [rows, cols] = shape;
  cpu::ThreadPool pool(1);
  const Tensor matrix = matrix_of(type, shape);
  std::vector<cpu::PackedMatrix> packed;
  packed.push_back(cpu::pack(matrix, pool));
  const size_t bytes = packed[0].byte_size(), copies = m == 1 ? (size_t(200) << 20) / bytes + 1 : 1;
  while (packed.size() < copies) packed.push_back(cpu::pack(matrix, pool));
  Random random(2);
  cpu::Buffer a(size_t(m) * size_t(cols)), c(size_t(m) * size_t(rows)),
      scratch(cpu::gemm_scratch_floats(m, cols));
  for (size_t i = 0; i < a.size(); i++) a.data()[i] = float(random.uniform() - 0.5);

  const double peak = peak_of(kernels);
  size_t next = 0;
  for (auto _ : state) {
    const cpu::PackedMatrix& w = packed[next++ % copies];
    kernels.gemm(w.type, w.row_block(0), 0, rows, cols, a.data(), m, size_t(cols), c.data(), size_t(rows),
                 scratch.data());
    benchmark::DoNotOptimize(c.data());
  }
  report(state, 2.0 * m * double(rows) * double(cols), peak);
  if (m == 1) state.SetBytesProcessed(int64_t(state.iterations()) * int64_t(bytes));
}

// What loading a model costs beyond reading its file.
void pack(benchmark::State& state, TensorType type, Shape shape) {
  cpu::ThreadPool pool(1);
  const Tensor matrix = matrix_of(type, shape);
  for (auto _ : state) benchmark::DoNotOptimize(cpu::pack(matrix, pool).bytes.data());
  state.SetBytesProcessed(int64_t(state.iterations()) * int64_t(matrix.data.size()));
}

[[maybe_unused]] const bool registered = [] {
  constexpr Shape kWide = {8960, 1536};
  constexpr TensorType kTypes[] = {TensorType::f32,  TensorType::bf16, TensorType::q4_1, TensorType::q5_0,
                                   TensorType::q8_0, TensorType::q4_k, TensorType::q6_k};
  const auto name_of = [](const char* what, TensorType type, Shape shape) {
    return std::string(what) + "/" + std::string(info_of(type).name) + "/rows:" + std::to_string(shape.rows) +
           "/cols:" + std::to_string(shape.cols);
  };
  for (const cpu::Kernels* kernels : fast_levels())
    for (const TensorType type : kTypes)
      for (const Shape shape : {Shape{1536, 576}, kWide, Shape{1536, 8960}, Shape{4096, 4096},
                                Shape{640, 2048}, Shape{2048, 640}})
        for (const int m : {512, 128, 16, 8, 4, 1}) {
          if (shape.cols % info_of(type).block_elements != 0) continue;
          const std::string what = "gemm/" + bench::name_of(*kernels);
          benchmark::RegisterBenchmark(
              (name_of(what.c_str(), type, shape) + "/m:" + std::to_string(m)).c_str(),
              [=](benchmark::State& state) { gemm(state, *kernels, type, shape, m); });
        }
  for (int i = 0; i < kTensorTypes; i++)
    benchmark::RegisterBenchmark(name_of("pack", TensorType(i), kWide).c_str(),
                                 [=](benchmark::State& state) { pack(state, TensorType(i), kWide); });
  return true;
}();

}  // namespace
}  // namespace kveval::bench
