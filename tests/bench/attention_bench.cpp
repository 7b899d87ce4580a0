// Attention at the end of 8,192 keys, a chunk of 256 tokens on one thread, and one token (decoding). Every
// format is decoded from its own codes; int8 with a scale per token.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "engine/cpu/attention.h"
#include "engine/kv/cache.h"
#include "engine/kv/page_pool.h"
#include "engine/random.h"
#include "tests/bench/bench.h"

namespace kveval::bench {
namespace {

constexpr size_t kKeys = 8192;
constexpr int kPageTokens = 256;

void attention(benchmark::State& state, const cpu::Kernels& kernels, const char* profile, int head_dim,
               int group, int tokens, int threads) {
  // Decoding walks more cache than fits anywhere but in memory.
  const kv::LayerShape shape{1, head_dim, 0};
  const kv::PageLayout layout = kv::page_layout(shape, parse_profile(profile), 0, kPageTokens);
  const size_t pages = kKeys / kPageTokens;
  const size_t copies = tokens == 1 ? (size_t(256) << 20) / (pages * layout.page_bytes) + 1 : 1;
  Random random(1);
  // The byte 0x38 .. 0x3b is 1 .. 1.4 as e4m3, 0.5 .. 0.9 as e5m2, and finite and near it in every other
  // format.
  std::vector<uint8_t> codes(layout.page_bytes);
  for (uint8_t& code : codes) code = uint8_t(0x38 + random.below(4));
  kv::PagePool memory(layout.page_bytes);
  std::vector<std::vector<const uint8_t*>> tables(copies);
  for (size_t i = 0; i < copies * pages; i++) {
    uint8_t* const page = memory.take()->codes();
    std::memcpy(page, codes.data(), codes.size());
    tables[i / pages].push_back(page);
  }

  const size_t n = size_t(tokens) * size_t(group) * size_t(head_dim);
  std::vector<float> q(n), out(n);
  for (float& x : q) x = float(random.uniform() - 0.5) * 0.1f;
  cpu::ThreadPool pool(threads);
  cpu::Attention attention(kernels, pool);

  const size_t first = kKeys - size_t(tokens);
  size_t next = 0;
  for (auto _ : state) {
    const cpu::AttentionSegment segment{tables[next++ % copies].data(), first, tokens, q.data(), out.data()};
    attention.run({group, 0, &layout}, {&segment, 1});
    benchmark::DoNotOptimize(out.data());
  }
  if (tokens == 1) return report_bytes(state, double(pages * layout.page_bytes), threads);
  double keys = 0;
  for (int i = 0; i < tokens; i++) keys += double(first) + i + 1;
  report(state, 4.0 * head_dim * group * keys, peak_of(kernels));
}

[[maybe_unused]] const bool registered = [] {
  struct Heads {
    int head_dim, group;
  };
  for (const cpu::Kernels* kernels : fast_levels())
    for (const int tokens : {256, 1})
      for (const Heads heads : {Heads{64, 3}, Heads{64, 9}, Heads{128, 6}, Heads{256, 4}})
        for (const char* profile : {"f32", "fp16", "bf16", "e4m3", "e5m2", "int8"}) {
          const std::string name = "attention/" + name_of(*kernels) + "/" + profile +
                                   "/head_dim:" + std::to_string(heads.head_dim) +
                                   "/group:" + std::to_string(heads.group) +
                                   "/tokens:" + std::to_string(tokens);
          for (const int threads : tokens == 1 ? thread_counts() : std::vector{1}) {
            auto* const added = benchmark::RegisterBenchmark(
                (name + "/threads:" + std::to_string(threads)).c_str(), [=](benchmark::State& state) {
                  attention(state, *kernels, profile, heads.head_dim, heads.group, tokens, threads);
                });
            if (tokens == 1) added->UseRealTime();
          }
        }
  return true;
}();

}  // namespace
}  // namespace kveval::bench
