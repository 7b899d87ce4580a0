// What estimates count, against loops over tokens, layers and keys, and against the products an engine makes.
#include "engine/cpu/cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/kernels.h"
#include "tests/engine/small_engine.h"

namespace kveval {
namespace {

// One token at `position`. `wanted`: whether anything reads what the last layer makes of it.
double flops_of_token(const ModelConfig& config, size_t position, bool wanted, bool attention) {
  double multiply_adds = 0;
  for (size_t l = 0; l < config.layers.size(); l++) {
    const LayerConfig& layer = config.layers[l];
    const double width = config.width, head = config.head_dim;
    multiply_adds += 2 * layer.kv_heads * head * width;  // k, v
    if (l + 1 == config.layers.size() && !wanted) continue;
    multiply_adds += 2 * layer.heads * head * width + 3 * layer.ff * width;  // q, o; gate, up, down
    for (size_t key = 0; attention && key <= position; key++) {
      const bool seen = layer.window == 0 || position - key < size_t(layer.window);
      if (seen) multiply_adds += 2 * layer.heads * head;  // its score, its value
    }
  }
  if (wanted) multiply_adds += double(config.vocabulary) * config.width;
  return 2 * multiply_adds;
}

struct Flops {
  double prefix = 0, branches = 0;
};

// A question's tokens and all of its reply's but the last are fed; logits are read from the question's last
// on.
Flops count(const ModelConfig& config, const GroupShape& shape, bool attention = true) {
  Flops flops;
  for (size_t i = 0; i < shape.prefix_tokens; i++)
    flops.prefix += flops_of_token(config, i, false, attention);
  const size_t question = shape.branch_tokens - shape.reply_tokens;
  for (size_t b = 0; b < shape.branches; b++)
    for (size_t i = 0; i + 1 < shape.branch_tokens; i++)
      flops.branches += flops_of_token(config, shape.prefix_tokens + i, i + 1 >= question, attention);
  return flops;
}

TEST(Cost, IsThatOfEveryTokenLayerAndKey) {
  for (uint64_t seed = 1; seed <= 12; seed++) {
    Random random(seed);
    const ModelConfig config = small_config(random);
    const auto engine = make_cpu_engine(std::make_shared<Model>(random_model(config, seed)));
    const size_t reply = 1 + random.below(30);
    const GroupShape shape{random.below(300), 1 + random.below(5), reply + 1 + random.below(200), reply};
    const Estimate estimate = engine->estimate(shape, parse_profile("fp16"));
    const Flops expected = count(config, shape);
    EXPECT_DOUBLE_EQ(estimate.prefix_flops, expected.prefix);
    EXPECT_DOUBLE_EQ(estimate.branch_flops, expected.branches);
    EXPECT_GT(estimate.seconds(), 0);
  }
}

// One that is all reply: its first token stands for the question's last.
TEST(Cost, OfABranchWithoutAQuestion) {
  Random random(3);
  const ModelConfig config = small_config(random);
  const auto engine = make_cpu_engine(std::make_shared<Model>(random_model(config, 3)));
  for (const size_t prefix : {size_t{0}, size_t{100}}) {
    EXPECT_EQ(engine->estimate({prefix, 1, 1, 1}, parse_profile("fp16")).branch_flops, 0);
    EXPECT_DOUBLE_EQ(engine->estimate({prefix, 2, 3, 3}, parse_profile("fp16")).branch_flops,
                     2 * cpu::forward_flops(config, prefix, 2, 2));
  }
}

TEST(Cost, DoesNotDependOnHowTokensAreCut) {
  Random random(5);
  const ModelConfig config = small_config(random);
  for (int i = 0; i < 50; i++) {
    const size_t all = 1 + random.below(600), cut = random.below(all), wanted = random.below(all - cut);
    EXPECT_DOUBLE_EQ(
        cpu::forward_flops(config, 0, all, wanted),
        cpu::forward_flops(config, 0, cut, 0) + cpu::forward_flops(config, cut, all - cut, wanted));
  }
}

// ---- the engine's own products

std::atomic<double> multiplied{0};
const cpu::Kernels* real_kernels = nullptr;

void counting_gemm(TensorType type, const uint8_t* packed, int n_begin, int n_end, int cols, const float* a,
                   int m, size_t lda, float* c, size_t ldc, float* scratch) {
  multiplied += 2.0 * m * double(n_end - n_begin) * cols;
  real_kernels->gemm(type, packed, n_begin, n_end, cols, a, m, lda, c, ldc, scratch);
}

TEST(Cost, IsWhatTheEngineMultiplies) {
  real_kernels = &cpu::kernels();
  cpu::Kernels counting = *real_kernels;
  counting.gemm = counting_gemm;
  for (uint64_t seed = 1; seed <= 4; seed++) {
    Random random(seed);
    ModelConfig config = small_config(random);
    config.vocabulary = 112;  // rows come in blocks of 16: no padding is counted
    for (LayerConfig& layer : config.layers) layer.ff = 32;
    CpuEngineOptions options{.chunk_tokens = 50};
    options.kernels = &counting;
    const auto engine = make_cpu_engine(std::make_shared<Model>(random_model(config, seed)), options);
    const GroupShape shape{170, 3, 20, 8};
    PromptGroup group;
    group.prefix.tokens = random_tokens(random, shape.prefix_tokens, config.vocabulary);
    // Replies of 8 tokens and a target of 8.
    const auto tokens = [&](size_t n) { return random_tokens(random, n, config.vocabulary); };
    group.branches.push_back({{Turn{tokens(12), {}, Ask::generate, {}}}});
    group.branches.push_back({{Turn{tokens(12), {}, Ask::score, tokens(8)}}});
    group.branches.push_back({{Turn{tokens(12), {}, Ask::generate, {}}}});
    multiplied = 0;
    run(*engine, group, parse_profile("fp16"), 8);
    const Flops expected = count(config, shape, false);
    EXPECT_EQ(multiplied.load(), expected.prefix + expected.branches);
  }
}

// ---- bytes

TEST(Cost, AStepReadsTheWeightsAndTheKeysInSight) {
  Random random(9);
  ModelConfig config = small_config(random);
  config.layers.resize(2);
  config.layers[0].window = 100;
  config.layers[1].window = 0;
  const auto engine = make_cpu_engine(std::make_shared<Model>(random_model(config, 9)));
  const auto bytes = [&](const char* profile, size_t prefix, size_t branch) {
    return engine->estimate({prefix, 4, branch, 1}, parse_profile(profile)).step_bytes;
  };
  // A branch of 11 tokens, the last of them its reply: the last step is at position prefix + 9.
  const auto cache = [&](double per_element, double per_row, size_t keys) {
    double sum = 0;
    for (const LayerConfig& layer : config.layers) {
      const size_t seen = layer.window > 0 ? std::min(keys, size_t(layer.window)) : keys;
      sum += double(seen) * layer.kv_heads * 2 * (config.head_dim * per_element + per_row);
    }
    return sum;
  };
  const auto padded = [](int rows) { return rows + (16 - rows % 16) % 16; };  // to whole row blocks
  double weights = double(padded(config.vocabulary)) * config.width;
  for (const LayerConfig& layer : config.layers) {
    weights += 2.0 * (layer.heads + layer.kv_heads) * config.head_dim * config.width;
    weights += 2.0 * padded(layer.ff) * config.width + double(layer.ff) * config.width;
  }
  weights *= sizeof(float);
  for (const size_t prefix : {size_t{20}, size_t{1000}}) {
    EXPECT_EQ(bytes("fp16", prefix, 11), weights + cache(2, 0, prefix + 10));
    EXPECT_EQ(bytes("e4m3", prefix, 11), weights + cache(1, 0, prefix + 10));
    EXPECT_EQ(bytes("int8", prefix, 11), weights + cache(1, 4, prefix + 10));
    EXPECT_EQ(bytes("k=fp16,v=e4m3", prefix, 11), weights + cache(1.5, 0, prefix + 10));
  }
}

}  // namespace
}  // namespace kveval
