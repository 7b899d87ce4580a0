#include "engine/model/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/rope.h"
#include "engine/model/weights.h"
#include "tests/engine/allocation_count.h"
#include "tests/engine/small_gguf.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

using GgufModel = SmallGgufTest;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::vector<int> windows_of(const Model& model) {
  std::vector<int> windows;
  for (const LayerConfig& layer : model.config.layers) windows.push_back(layer.window);
  return windows;
}

std::vector<int> ropes_of(const Model& model) {
  std::vector<int> ropes;
  for (const LayerConfig& layer : model.config.layers) ropes.push_back(layer.rope);
  return ropes;
}

bool holds(const std::vector<float>& values, const SmallGguf& file, const std::string& tensor) {
  const std::string& bytes = file.tensors.at(tensor).data;
  return values.size() * sizeof(float) == bytes.size() &&
         std::memcmp(values.data(), bytes.data(), bytes.size()) == 0;
}

bool holds(const Tensor& matrix, const SmallGguf& file, const std::string& tensor) {
  return holds(floats_of(matrix), file, tensor);
}

// ------------------------------------------------------------------------------------------- right files

TEST_F(GgufModel, LlamaIsThePlainBlock) {
  const SmallGguf file = small_gguf("llama");
  const Model model = load(file);
  const ModelConfig& config = model.config;
  EXPECT_EQ(config.architecture, "llama");
  EXPECT_EQ(config.width, 128);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.vocabulary, 256 + 2 + 3);
  EXPECT_EQ(config.context, 256);
  EXPECT_EQ(config.norm_epsilon, 1e-6f);
  EXPECT_EQ(config.rope_style, RopeStyle::interleaved);
  EXPECT_EQ(config.activation, Activation::silu);
  EXPECT_EQ(config.embedding_scale, 1);
  EXPECT_EQ(config.score_scale, 0);
  ASSERT_THAT(config.layers, SizeIs(2));
  EXPECT_EQ(config.layers[1].heads, 2);
  EXPECT_EQ(config.layers[1].kv_heads, 1);
  EXPECT_EQ(config.layers[1].ff, 96);
  EXPECT_THAT(windows_of(model), Each(0));
  ASSERT_THAT(config.ropes, SizeIs(1));
  EXPECT_EQ(config.ropes[0].frequencies, plain_rope(500000, 64).frequencies);

  const LayerWeights& layer = model.weights.layers[1];
  EXPECT_TRUE(holds(model.weights.embedding, file, "token_embd.weight"));
  EXPECT_TRUE(holds(model.weights.output_norm, file, "output_norm.weight"));
  EXPECT_TRUE(holds(layer.attention_norm, file, "blk.1.attn_norm.weight"));
  EXPECT_TRUE(holds(layer.q, file, "blk.1.attn_q.weight"));
  EXPECT_TRUE(holds(layer.k, file, "blk.1.attn_k.weight"));
  EXPECT_TRUE(holds(layer.v, file, "blk.1.attn_v.weight"));
  EXPECT_TRUE(holds(layer.o, file, "blk.1.attn_output.weight"));
  EXPECT_TRUE(holds(layer.ff_norm, file, "blk.1.ffn_norm.weight"));
  EXPECT_TRUE(holds(layer.gate, file, "blk.1.ffn_gate.weight"));
  EXPECT_TRUE(holds(layer.up, file, "blk.1.ffn_up.weight"));
  EXPECT_TRUE(holds(layer.down, file, "blk.1.ffn_down.weight"));
  for (const auto* vector : {&layer.q_bias, &layer.k_bias, &layer.v_bias, &layer.q_norm, &layer.k_norm,
                             &layer.post_attention_norm, &layer.post_ff_norm})
    EXPECT_THAT(*vector, IsEmpty());
  EXPECT_EQ(model.hash, hash_of(model.config, model.weights));
  EXPECT_EQ(model.name, std::filesystem::path(folder_.path()) / "model.gguf");
}

TEST_F(GgufModel, QwensHaveTheirBiasesAndNorms) {
  const SmallGguf with_biases = small_gguf("qwen2");
  const Model qwen2 = load(with_biases);
  EXPECT_EQ(qwen2.config.rope_style, RopeStyle::halves);
  EXPECT_TRUE(holds(qwen2.weights.layers[0].q_bias, with_biases, "blk.0.attn_q.bias"));
  EXPECT_TRUE(holds(qwen2.weights.layers[0].k_bias, with_biases, "blk.0.attn_k.bias"));
  EXPECT_TRUE(holds(qwen2.weights.layers[0].v_bias, with_biases, "blk.0.attn_v.bias"));

  const SmallGguf with_norms = small_gguf("qwen3");
  const Model qwen3 = load(with_norms);
  EXPECT_EQ(qwen3.config.rope_style, RopeStyle::halves);
  EXPECT_EQ(qwen3.config.activation, Activation::silu);
  EXPECT_TRUE(holds(qwen3.weights.layers[1].q_norm, with_norms, "blk.1.attn_q_norm.weight"));
  EXPECT_TRUE(holds(qwen3.weights.layers[1].k_norm, with_norms, "blk.1.attn_k_norm.weight"));
  EXPECT_THAT(qwen3.weights.layers[1].q_bias, IsEmpty());
}

TEST_F(GgufModel, Gemma3HasTwoKindsOfLayers) {
  const SmallGguf file =
      small_gguf("gemma3", 7).set("rope.scaling.type", "linear").set("rope.scaling.factor", 8.f);
  const Model model = load(file);
  EXPECT_EQ(model.config.rope_style, RopeStyle::halves);
  EXPECT_EQ(model.config.activation, Activation::gelu_tanh);
  EXPECT_EQ(model.config.embedding_scale, std::sqrt(128.f));
  EXPECT_EQ(model.config.score_scale, 0);
  EXPECT_THAT(windows_of(model), ElementsAre(16, 16, 16, 16, 16, 0, 16));
  EXPECT_THAT(ropes_of(model), ElementsAre(1, 1, 1, 1, 1, 0, 1));
  ASSERT_THAT(model.config.ropes, SizeIs(2));
  EXPECT_EQ(model.config.ropes[0].frequencies, linear_rope(500000, 64, 8).frequencies);
  EXPECT_EQ(model.config.ropes[1].frequencies, plain_rope(10000, 64).frequencies);
  EXPECT_TRUE(holds(model.weights.layers[6].q_norm, file, "blk.6.attn_q_norm.weight"));
  EXPECT_TRUE(holds(model.weights.layers[6].post_attention_norm, file, "blk.6.post_attention_norm.weight"));
  EXPECT_TRUE(holds(model.weights.layers[6].post_ff_norm, file, "blk.6.post_ffw_norm.weight"));
}

TEST_F(GgufModel, Gemma3WindowsAsTheFileSpellsThem) {
  SmallGguf file = small_gguf("gemma3", 4);
  const auto windows = [&] { return windows_of(load(file)); };
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  EXPECT_THAT((file.set(kPattern, 2u), windows()), ElementsAre(16, 0, 16, 0));
  EXPECT_THAT((file.set(kPattern, 1u), windows()), Each(0));
  EXPECT_THAT((file.set(kPattern, 0u), windows()), Each(16));
  EXPECT_THAT((file.set(kPattern, std::vector<bool>{false, true, true, false}), windows()),
              ElementsAre(0, 16, 16, 0));
  EXPECT_THAT((file.set(kPattern, std::vector<int32_t>{1, 0, 0, 1}), windows()), ElementsAre(16, 0, 0, 16));
  file.set("rope.freq_base_swa", 30000.f);
  EXPECT_EQ(load(file).config.ropes[1].frequencies, plain_rope(30000, 64).frequencies);
  file.set("attention.sliding_window", 0u).drop(kPattern).drop("rope.freq_base_swa");
  EXPECT_THAT(windows(), Each(0));
}

TEST_F(GgufModel, TheLargestGemma3DividesScoresByWidthOverHeads) {
  SmallGguf file = small_gguf("gemma3", 62);
  resize_heads(file, 62, 128);
  EXPECT_EQ(load(file).config.score_scale, 1 / std::sqrt(128. / 2));
}

TEST_F(GgufModel, AWindowOfALlamaIsOnAllLayers) {
  EXPECT_THAT(windows_of(load(small_gguf("llama").set("attention.sliding_window", 100u))),
              ElementsAre(100, 100));
  // The context is 256: what all fits into cuts nothing off.
  EXPECT_THAT(windows_of(load(small_gguf("llama").set("attention.sliding_window", 256u))), Each(0));
  EXPECT_THAT(windows_of(load(small_gguf("qwen2").set("attention.sliding_window", 4096u))), Each(0));
}

TEST_F(GgufModel, ScalesRope) {
  const auto rope = [&](SmallGguf file) { return load(file).config.ropes[0]; };
  const std::vector<double> plain = plain_rope(500000, 64).frequencies,
                            slowed = linear_rope(500000, 64, 4).frequencies;
  EXPECT_EQ(rope(small_gguf("llama").drop("rope.freq_base")).frequencies, plain_rope(10000, 64).frequencies);
  EXPECT_EQ(rope(small_gguf("llama").set("rope.scaling.type", "linear").set("rope.scaling.factor", 4.f))
                .frequencies,
            slowed);
  EXPECT_EQ(rope(small_gguf("llama").set("rope.scaling.factor", 4.f)).frequencies, slowed);
  EXPECT_EQ(rope(small_gguf("llama").set("rope.scale_linear", 4.f)).frequencies, slowed);
  EXPECT_EQ(
      rope(small_gguf("llama").set("rope.scaling.type", "none").set("rope.scaling.factor", 4.f)).frequencies,
      plain);
  EXPECT_EQ(rope(small_gguf("llama").set("rope.scaling.finetuned", false)).frequencies, plain);

  SmallGguf divided = small_gguf("llama").tensor("rope_freqs.weight", {32}, 3);
  std::vector<float> divisors(32);
  std::memcpy(divisors.data(), divided.tensors.at("rope_freqs.weight").data.data(), 32 * sizeof(float));
  EXPECT_EQ(rope(divided).frequencies, divided_rope(500000, 64, divisors).frequencies);
}

TEST_F(GgufModel, StretchesRopeByYarn) {
  SmallGguf file = small_gguf("qwen2");
  file.set("rope.scaling.type", "yarn").set("rope.scaling.factor", 4.f);
  file.set("rope.scaling.original_context_length", 128u);
  const Model model = load(file);
  const Rope expected = yarn_rope(500000, 64, {.factor = 4, .original_context = 128});
  EXPECT_EQ(model.config.ropes[0].frequencies, expected.frequencies);
  EXPECT_EQ(model.config.ropes[0].magnitude, expected.magnitude);
  EXPECT_EQ(model.config.context, 512);  // 4 x 128, though context_length says 256

  file.set("rope.scaling.yarn_beta_fast", 20.f).set("rope.scaling.yarn_beta_slow", 2.f);
  file.set("rope.scaling.attn_factor", 1.5f).set("rope.scaling.yarn_ext_factor", 1.f);
  file.set("rope.scaling.yarn_attn_factor", float(0.1 * std::log(4) + 1));
  const Rope changed = load(file).config.ropes[0];
  EXPECT_EQ(changed.frequencies,
            yarn_rope(500000, 64, {.factor = 4, .original_context = 128, .beta_fast = 20, .beta_slow = 2})
                .frequencies);
  EXPECT_NEAR(changed.magnitude, 1.5 * (0.1 * std::log(4) + 1), 1e-12);
  file.set("context_length", 1000u);
  EXPECT_EQ(load(file).config.context, 1000);
}

TEST_F(GgufModel, LayersMayDiffer) {
  SmallGguf file = small_gguf("llama");
  file.set("feed_forward_length", std::vector<uint32_t>{96, 64});
  file.tensor("blk.1.ffn_gate.weight", {64, 128}).tensor("blk.1.ffn_up.weight", {64, 128});
  file.tensor("blk.1.ffn_down.weight", {128, 64});
  file.set("attention.head_count_kv", std::vector<int32_t>{1, 2});
  file.tensor("blk.1.attn_k.weight", {128, 128}).tensor("blk.1.attn_v.weight", {128, 128});
  const Model model = load(file);
  EXPECT_EQ(model.config.layers[0].ff, 96);
  EXPECT_EQ(model.config.layers[1].ff, 64);
  EXPECT_EQ(model.config.layers[0].kv_heads, 1);
  EXPECT_EQ(model.config.layers[1].kv_heads, 2);
}

TEST_F(GgufModel, AnAbsentHeadIsTheEmbedding) {
  SmallGguf file = small_gguf("llama");
  EXPECT_TRUE(has_tied_head(load(file).weights));
  file.tensor("output.weight", {261, 128});
  const Model model = load(file);
  EXPECT_FALSE(has_tied_head(model.weights));
  EXPECT_TRUE(holds(model.weights.head, file, "output.weight"));
}

TEST_F(GgufModel, HarmlessKeysChangeNothing) {
  SmallGguf file = small_gguf("llama");
  const Model before = load(file);
  file.set("general.name", "x").set("general.whatever", 7u).set("quantize.imatrix.file", "x.dat");
  file.set("vocab_size", 261u)
      .set("rope.dimension_count", 64u)
      .set("tensor_data_layout", "Meta AI original pth");
  file.set("expert_count", 0u).set("final_logit_softcapping", 0.f).set("vision.block_count", 3u);
  file.set("tokenizer.ggml.padding_token_id", 0u).set("tokenizer.ggml.fim_pre_token_id", 0u);
  file.set("tokenizer.ggml.add_eos_token", false).set("tokenizer.ggml.add_bos_token", false);
  file.set("tokenizer.ggml.eom_token_id", 3u).set("general.quantization_version", 2u);
  const Model after = load(file);
  EXPECT_EQ(after.hash, before.hash);
  EXPECT_EQ(after.tokenizer->encode("a baab"), before.tokenizer->encode("a baab"));
}

TEST_F(GgufModel, ALlamaMayHaveBiases) {
  SmallGguf file = small_gguf("llama");
  file.tensor("blk.0.attn_q.bias", {128}).tensor("blk.0.attn_k.bias", {64}).tensor("blk.0.attn_v.bias", {64});
  const Model model = load(file);
  EXPECT_TRUE(holds(model.weights.layers[0].q_bias, file, "blk.0.attn_q.bias"));
  EXPECT_THAT(model.weights.layers[1].q_bias, IsEmpty());
}

// ---------------------------------------------------------------------------------------------- its text

TEST_F(GgufModel, ReadsByteLevelVocabularies) {
  SmallGguf file = small_gguf("llama");
  const Model model = load(file);
  // Bytes are themselves, 256 is "ab", 257 " a".
  EXPECT_THAT(model.tokenizer->encode("abb a"), ElementsAre(256, 'b', 257));
  EXPECT_EQ(model.tokenizer->bos(), std::nullopt);
  EXPECT_EQ(model.tokenizer->eos(), 259);
  file.set("tokenizer.ggml.add_bos_token", true);
  EXPECT_EQ(load(file).tokenizer->bos(), 258);
}

TEST_F(GgufModel, ReadsSentencePieceVocabularies) {
  SmallGguf file = small_gguf("gemma3");
  const Model model = load(file);
  constexpr Token kSpace = 261, kAb = 262, kSpaceA = 263;
  EXPECT_THAT(model.tokenizer->encode("ab a"), ElementsAre(kAb, kSpaceA));
  EXPECT_EQ(model.tokenizer->bos(), 1);
  EXPECT_EQ(model.tokenizer->eos(), 2);
  // Without the key, and with it, a space comes first.
  EXPECT_THAT(load(file.drop("tokenizer.ggml.add_space_prefix")).tokenizer->encode("ab"),
              ElementsAre(kSpace, kAb));
  EXPECT_THAT(load(file.set("tokenizer.ggml.add_space_prefix", true)).tokenizer->encode("ab"),
              ElementsAre(kSpace, kAb));
}

TEST_F(GgufModel, PadsTheVocabularyToTheEmbedding) {
  SmallGguf file = small_gguf("llama").tensor("token_embd.weight", {300, 128});
  const Model model = load(file);
  EXPECT_EQ(model.config.vocabulary, 300);
  EXPECT_EQ(model.tokenizer->vocabulary_size(), 300);
}

TEST_F(GgufModel, UnderstandsTheChatTemplateOrSaysWhyNot) {
  SmallGguf file = small_gguf("llama");
  EXPECT_EQ(load(file).chat.family, "plain");
  EXPECT_FALSE(load(file).chat_error);
  file.set("tokenizer.chat_template",
           "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}"
           "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
  EXPECT_EQ(load(file).chat.family, "chatml");
  EXPECT_FALSE(load(file).chat_error);
  const Model unknown = load(file.set("tokenizer.chat_template", "{{ messages }}"));
  EXPECT_EQ(unknown.chat.family, "plain");
  ASSERT_TRUE(unknown.chat_error);
  EXPECT_THAT(unknown.chat_error->what(), HasSubstr("model.gguf: the chat template"));
}

TEST_F(GgufModel, AnEndOfTurnEndsAnswersWithoutATemplateToo) {
  SmallGguf file = small_gguf("llama");
  EXPECT_EQ(load(file).chat.end_of_answer, "");
  file.set("tokenizer.ggml.eot_token_id", 260u);
  EXPECT_EQ(load(file).chat.end_of_answer, "<tool>");
  file.set("tokenizer.ggml.eot_token_id", 261u);
  EXPECT_THAT(refusal(file), HasSubstr("'tokenizer.ggml.eot_token_id' has the value 261"));
}

TEST_F(GgufModel, OpensWithinItsAllocationBudget) {
  for (const char* architecture : {"llama", "qwen2", "gemma3"}) {
    const std::string path = folder_.write("budget.gguf", small_gguf(architecture, 4).file());
    const size_t file_bytes = std::filesystem::file_size(path), before = allocated_bytes();
    reset_peak_allocated_bytes();
    const Model model = read_gguf_model(path);
    EXPECT_LT(peak_allocated_bytes() - before, 4 * file_bytes) << architecture;
  }
}

}  // namespace
}  // namespace kveval
