#include "engine/model/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engine/error.h"
#include "engine/model/config.h"
#include "engine/model/rope.h"
#include "tests/engine/reference_forward.h"

namespace kveval {
namespace {

using reference::Matrix;
using reference::Vector;
using testing::HasSubstr;

constexpr int kHeadDim = 16;

ModelConfig small_config(std::vector<LayerConfig> layers) {
  ModelConfig config;
  config.architecture = "llama";
  config.width = 24;
  config.head_dim = kHeadDim;
  config.vocabulary = 50;
  config.context = 100;
  config.ropes = {plain_rope(10000, kHeadDim)};
  config.layers = std::move(layers);
  return config;
}

TEST(ModelConfig, FlopsAreTwiceThePublishedParameterCounts) {
  // SmolLM2-135M: 134.5 million parameters, 49,152 x 576 of them the tied embedding.
  ModelConfig config;
  config.width = 576;
  config.head_dim = 64;
  config.vocabulary = 49152;
  config.layers.assign(30, {.heads = 9, .kv_heads = 3, .window = 0, .ff = 1536});
  EXPECT_EQ(head_flops_per_token(config), 2 * 28311552.0);
  EXPECT_NEAR(linear_flops_per_token(config) / 2, 134.515e6 - 28.312e6,
              0.05e6);  // the norms are the difference
}

TEST(Weights, CheckShapesNamesTheTensorThatIsWrong) {
  const Model right =
      reference::random_model(small_config({{.heads = 2, .ff = 32}, {.heads = 4, .ff = 16}}), 1);
  EXPECT_NO_THROW(check_shapes(right));
  const std::pair<const char*, std::function<void(Model&)>> faults[] = {
      {"'embedding'",
       [](Model& m) {
         m.weights.embedding.shape = {49, 24};
       }},
      {"'layers.0.attention_norm'", [](Model& m) { m.weights.layers[0].attention_norm.pop_back(); }},
      {"'layers.1.q'", [](Model& m) { m.weights.layers[1].q = m.weights.layers[0].q; }},
      {"'layers.1.k'", [](Model& m) { m.weights.layers[1].k.data = m.weights.layers[1].k.data.first(8); }},
      {"'layers.0.down'", [](Model& m) { m.weights.layers[0].down = m.weights.layers[0].up; }},
      {"1 layers where", [](Model& m) { m.weights.layers.pop_back(); }},
      {"'output_norm'", [](Model& m) { m.weights.output_norm.push_back(0); }},
      {"'head'", [](Model& m) {
         m.config.vocabulary = 51, m.weights.embedding = reference::tensor_of(reference::zero_matrix(51, 24));
       }}};
  for (const auto& [named, break_it] : faults) {
    Model wrong = right;
    break_it(wrong);
    try {
      check_shapes(wrong);
      ADD_FAILURE() << named << " went unnoticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::bad_file);
      EXPECT_THAT(error.what(), HasSubstr(named));
    }
  }
}

TEST(Weights, HashChangesWithAnyTensorAndAnySetting) {
  const Model model = reference::random_model(small_config({{.heads = 2, .ff = 32}}), 1);
  EXPECT_EQ(hash_of(model.config, model.weights), model.hash);
  const auto negate_one = [](std::vector<float>& values) { values[values.size() / 2] *= -1; };
  const auto negate_in = [&](Tensor& tensor) {
    Matrix matrix = reference::matrix_of(tensor);
    negate_one(matrix.values);
    tensor = reference::tensor_of(matrix);
  };
  const std::function<void(Model&)> changes[] = {
      [&](Model& m) { negate_in(m.weights.embedding); },
      [&](Model& m) { negate_one(m.weights.layers[0].attention_norm); },
      [&](Model& m) { negate_in(m.weights.layers[0].q); },
      [&](Model& m) { negate_in(m.weights.layers[0].k); },
      [&](Model& m) { negate_in(m.weights.layers[0].v); },
      [&](Model& m) { negate_in(m.weights.layers[0].o); },
      [&](Model& m) { negate_one(m.weights.layers[0].ff_norm); },
      [&](Model& m) { negate_in(m.weights.layers[0].gate); },
      [&](Model& m) { negate_in(m.weights.layers[0].up); },
      [&](Model& m) { negate_in(m.weights.layers[0].down); },
      [&](Model& m) { negate_one(m.weights.output_norm); },
      [&](Model& m) { negate_in(m.weights.head); },
      [](Model& m) { m.config.architecture = "qwen2"; },
      [](Model& m) { m.config.context += 1; },
      [](Model& m) { m.config.norm_epsilon = 1e-5f; },
      [](Model& m) { m.config.ropes[0].frequencies[1] *= 1.01; },
      [](Model& m) { m.config.ropes[0].magnitude = 1.1; },
      [](Model& m) { m.config.activation = Activation::gelu_tanh; },
      [](Model& m) { m.config.embedding_scale = 2; },
      [](Model& m) { m.config.score_scale = 0.3; },
      [](Model& m) { m.weights.layers[0].k_bias.assign(kHeadDim, 0.1f); },
      [](Model& m) { m.weights.layers[0].q_norm.assign(kHeadDim, 1.f); },
      [](Model& m) { m.weights.layers[0].post_ff_norm.assign(24, 1.f); },
      [](Model& m) { m.config.rope_style = RopeStyle::interleaved; },
      [](Model& m) { m.config.layers[0].window = 8; },
      [](Model& m) { m.config.layers[0].rope = kNoRope; }};
  for (const auto& change : changes) {
    Model changed = model;
    change(changed);
    EXPECT_NE(hash_of(changed.config, changed.weights), model.hash) << "change " << &change - changes;
  }
}

// ------------------------------------------------- what must hold of the reference itself, whatever the
// weights

double difference(const Vector& a, const Vector& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

Vector last_logits(const Model& model, const Tokens& tokens) {
  return reference::logits(model, tokens, {tokens.size() - 1}).front();
}

TEST(ReferenceForward, OrderOfEarlierTokensCountsOnlyWithRope) {
  const Tokens tokens = {3, 14, 15, 9, 26}, swapped = {14, 9, 15, 3, 26};
  for (bool rope : {false, true}) {
    const Model model =
        reference::random_model(small_config({{.heads = 2, .rope = rope ? 0 : kNoRope, .ff = 32}}), 2);
    const double change = difference(last_logits(model, tokens), last_logits(model, swapped));
    if (rope)
      EXPECT_GT(change, 1e-3);
    else
      EXPECT_LT(change, 1e-12);
  }
}

TEST(ReferenceForward, RopeSeesDistancesAlone) {
  // One layer: the last position's logits depend on its distances to keys, so tokens before the window only
  // shift it.
  const Model model = reference::random_model(small_config({{.heads = 2, .window = 4, .ff = 32}}), 3);
  const Vector alone = last_logits(model, {1, 2, 3, 4});
  EXPECT_LT(difference(alone, last_logits(model, {9, 8, 7, 1, 2, 3, 4})), 1e-12);
  EXPECT_GT(difference(alone, last_logits(model, {9, 8, 7, 2, 2, 3, 4})),
            1e-3);  // the window's first token counts
}

TEST(ReferenceForward, SharedKeyHeadsAreCopies) {
  const Model shared = reference::random_model(small_config({{.heads = 6, .kv_heads = 2, .ff = 32}}), 4);
  Model copied = shared;
  copied.config.layers[0].kv_heads = 6;
  for (Tensor LayerWeights::*member : {&LayerWeights::k, &LayerWeights::v}) {
    const Matrix from = reference::matrix_of(shared.weights.layers[0].*member);
    Matrix to = reference::zero_matrix(6 * kHeadDim, from.cols);
    for (int row = 0; row < to.rows; ++row) {
      const int source =
          row / kHeadDim / 3 * kHeadDim + row % kHeadDim;  // heads 0-2 read KV head 0, 3-5 read 1
      std::copy_n(from.row(source), from.cols, to.row(row));
    }
    copied.weights.layers[0].*member = reference::tensor_of(to);
  }
  const Tokens tokens = {3, 14, 15, 9, 26, 5};
  EXPECT_LT(difference(last_logits(shared, tokens), last_logits(copied, tokens)), 1e-12);
}

TEST(ReferenceForward, RopeStylesDifferByAPermutation) {
  const Model halves = reference::random_model(small_config({{.heads = 3, .ff = 32}}), 5);
  Model interleaved = halves;
  interleaved.config.rope_style = RopeStyle::interleaved;
  const Tokens tokens = {3, 14, 15, 9, 26, 5};
  EXPECT_GT(difference(last_logits(halves, tokens), last_logits(interleaved, tokens)), 1e-3);
  for (Tensor LayerWeights::*member : {&LayerWeights::q, &LayerWeights::k}) {
    const Matrix from = reference::matrix_of(halves.weights.layers[0].*member);
    Matrix to = from;
    for (int row = 0; row < to.rows; ++row) {
      const int element = row % kHeadDim;
      const int source = row - element + element / 2 + (element % 2) * kHeadDim / 2;
      std::copy_n(from.row(source), from.cols, to.row(row));
    }
    interleaved.weights.layers[0].*member = reference::tensor_of(to);
  }
  EXPECT_LT(difference(last_logits(halves, tokens), last_logits(interleaved, tokens)), 1e-12);
}

TEST(ReferenceForward, CacheRoundingSeesEveryKeyAndValue) {
  const Model model = reference::random_model(
      small_config({{.heads = 2, .ff = 32}, {.heads = 4, .kv_heads = 2, .ff = 16}}), 6);
  const Tokens tokens = {3, 14, 15};
  std::vector<std::string> seen;
  reference::logits(model, tokens, {2}, [&](int layer, bool keys, Vector& rows) {
    seen.push_back(std::to_string(layer) + (keys ? "k" : "v") + std::to_string(rows.size()));
  });
  EXPECT_THAT(seen, testing::ElementsAre("0k48", "0v48", "1k96", "1v96"));
}

}  // namespace
}  // namespace kveval
