// Matrix products, by weight format: many rows on one thread at the shapes of the catalogued checkpoints, and
// one row, which walks more weights than any cache holds, as decoding does.
#include <benchmark/benchmark.h>

#include <cstring>
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

struct Rows {
  int m;
  cpu::Buffer a, c;
  Rows(int rows, Shape shape)
      : m(rows), a(size_t(rows) * size_t(shape.cols)), c(size_t(rows) * size_t(shape.rows)) {
    Random random(2);
    for (size_t i = 0; i < a.size(); i++) a.data()[i] = float(random.uniform() - 0.5);
  }
};

void many_rows(benchmark::State& state, const cpu::Kernels& kernels, TensorType type, Shape shape, int m) {
  const auto [rows, cols] = shape;
  cpu::ThreadPool pool(1);
  const cpu::PackedMatrix w = cpu::pack(matrix_of(type, shape), pool);
  Rows x(m, shape);
  cpu::Buffer scratch(cpu::gemm_scratch_floats(m, cols));
  for (auto _ : state) {
    kernels.gemm(w.type, w.row_block(0), 0, rows, cols, x.a.data(), m, size_t(cols), x.c.data(), size_t(rows),
                 scratch.data());
    benchmark::DoNotOptimize(x.c.data());
  }
  report(state, 2.0 * m * double(rows) * double(cols), peak_of(kernels));
}

void one_row(benchmark::State& state, const cpu::Kernels& kernels, TensorType type, Shape shape,
             int threads) {
  cpu::ThreadPool pool(threads);
  std::vector<cpu::PackedMatrix> packed;
  packed.push_back(cpu::pack(matrix_of(type, shape), pool));
  const size_t bytes = packed[0].byte_size(), copies = (size_t(200) << 20) / bytes + 1;
  while (packed.size() < copies) {
    packed.push_back({type, shape.rows, shape.cols, cpu::Buffer(bytes / sizeof(float))});
    std::memcpy(packed.back().bytes.data(), packed[0].bytes.data(), bytes);
  }
  Rows x(1, shape);
  size_t next = 0;
  for (auto _ : state) {
    cpu::matmul(kernels, pool, packed[next++ % copies], x.a.data(), 1, size_t(shape.cols), x.c.data(),
                size_t(shape.rows));
    benchmark::DoNotOptimize(x.c.data());
  }
  report_bytes(state, double(bytes), threads);
}

// What loading a model costs beyond reading its file.
void pack(benchmark::State& state, TensorType type, Shape shape) {
  cpu::ThreadPool pool(1);
  const Tensor matrix = matrix_of(type, shape);
  for (auto _ : state) benchmark::DoNotOptimize(cpu::pack(matrix, pool).bytes.data());
  state.SetBytesProcessed(int64_t(state.iterations()) * int64_t(matrix.data.size()));
}

// The matrices of the checkpoints in the catalog; heads see a few rows at a time.
struct Matrix {
  const char* model;
  TensorType type;
  Shape shape;
};
constexpr int kMostLayerRows = 10000;
constexpr Matrix kMatrices[] = {
    {"smollm2", TensorType::q4_1, {576, 576}},   {"smollm2", TensorType::q4_1, {192, 576}},
    {"smollm2", TensorType::q4_1, {1536, 576}},  {"smollm2", TensorType::q4_1, {576, 1536}},
    {"smollm2", TensorType::q8_0, {49152, 576}}, {"gemma3", TensorType::q5_0, {1024, 640}},
    {"gemma3", TensorType::q5_0, {256, 640}},    {"gemma3", TensorType::q5_0, {2048, 640}},
    {"gemma3", TensorType::q4_k, {640, 1024}},   {"gemma3", TensorType::q4_k, {640, 2048}},
    {"gemma3", TensorType::q6_k, {640, 2048}},   {"gemma3", TensorType::q8_0, {262144, 640}},
    {"qwen2.5", TensorType::q4_k, {1536, 1536}}, {"qwen2.5", TensorType::q4_k, {256, 1536}},
    {"qwen2.5", TensorType::q4_k, {8960, 1536}}, {"qwen2.5", TensorType::q6_k, {1536, 8960}},
    {"qwen2.5", TensorType::q4_k, {1536, 8960}}, {"qwen2.5", TensorType::q6_k, {151936, 1536}},
};

std::string name_of(std::string what, TensorType type, Shape shape) {
  return what + "/" + std::string(info_of(type).name) + "/rows:" + std::to_string(shape.rows) +
         "/cols:" + std::to_string(shape.cols);
}

void add_gemm(const cpu::Kernels& kernels, const std::string& what, TensorType type, Shape shape, int m) {
  benchmark::RegisterBenchmark(
      (name_of(what, type, shape) + "/m:" + std::to_string(m)).c_str(),
      [=, &kernels](benchmark::State& state) { many_rows(state, kernels, type, shape, m); });
}

void add_gemv(const cpu::Kernels& kernels, const std::string& what, TensorType type, Shape shape) {
  for (const int threads : thread_counts())
    benchmark::RegisterBenchmark(
        (name_of(what, type, shape) + "/m:1/threads:" + std::to_string(threads)).c_str(),
        [=, &kernels](benchmark::State& state) { one_row(state, kernels, type, shape, threads); })
        ->UseRealTime();
}

[[maybe_unused]] const bool registered = [] {
  for (const cpu::Kernels* kernels : fast_levels()) {
    const std::string gemm = "gemm/" + bench::name_of(*kernels);
    for (const auto& [model, type, shape] : kMatrices) {
      add_gemm(*kernels, gemm + "/" + model, type, shape, shape.rows > kMostLayerRows ? 16 : 512);
      add_gemv(*kernels, gemm + "/" + model, type, shape);
    }
    for (int i = 0; i < kTensorTypes; i++) {
      constexpr Shape kAny = {1536, 768};  // whole blocks of every type
      for (const int m : {512, 128, 16, 8, 4}) add_gemm(*kernels, gemm + "/any", TensorType(i), kAny, m);
      add_gemv(*kernels, gemm + "/any", TensorType(i), kAny);
    }
  }
  for (int i = 0; i < kTensorTypes; i++)
    benchmark::RegisterBenchmark(name_of("pack", TensorType(i), {8960, 1536}).c_str(),
                                 [i](benchmark::State& state) {
                                   pack(state, TensorType(i), {8960, 1536});
                                 });
  return true;
}();

}  // namespace
}  // namespace kveval::bench
