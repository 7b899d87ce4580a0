#include "tests/engine/small_gguf.h"

#include <algorithm>
#include <string_view>

#include "engine/model/gguf_model.h"
#include "engine/random.h"
#include "tests/engine/refusal.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

enum : uint32_t { kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kText = 8, kArray = 9 };

constexpr uint64_t kWidth = 128, kFeedForward = 96, kHeads = 2;

template <class T>
std::string array_of(uint32_t type, const std::vector<T>& values) {
  std::string bytes = raw(uint32_t(kArray)) + raw(type) + raw(uint64_t(values.size()));
  for (const T value : values) bytes += raw(value);
  return bytes;
}

void add_attention(SmallGguf& file, const std::string& block, uint64_t head_dim) {
  const uint64_t q_rows = kHeads * head_dim;
  file.tensor(block + "attn_q.weight", {q_rows, kWidth});
  file.tensor(block + "attn_k.weight", {head_dim, kWidth});
  file.tensor(block + "attn_v.weight", {head_dim, kWidth});
  file.tensor(block + "attn_output.weight", {kWidth, q_rows});
  if (file.architecture == "qwen2") {
    file.tensor(block + "attn_q.bias", {q_rows});
    file.tensor(block + "attn_k.bias", {head_dim});
    file.tensor(block + "attn_v.bias", {head_dim});
  }
  if (file.architecture == "qwen3" || file.architecture == "gemma3") {
    file.tensor(block + "attn_q_norm.weight", {head_dim}, 1);
    file.tensor(block + "attn_k_norm.weight", {head_dim}, 1);
  }
}

std::string block_name(int layer) { return "blk." + std::to_string(layer) + "."; }

void add_block(SmallGguf& file, int layer) {
  const std::string block = block_name(layer);
  add_attention(file, block, kWidth / kHeads);
  file.tensor(block + "attn_norm.weight", {kWidth}, 1);
  file.tensor(block + "ffn_norm.weight", {kWidth}, 1);
  file.tensor(block + "ffn_gate.weight", {kFeedForward, kWidth});
  file.tensor(block + "ffn_up.weight", {kFeedForward, kWidth});
  file.tensor(block + "ffn_down.weight", {kWidth, kFeedForward});
  if (file.architecture == "gemma3") {
    file.tensor(block + "post_attention_norm.weight", {kWidth}, 1);
    file.tensor(block + "post_ffw_norm.weight", {kWidth}, 1);
  }
}

}  // namespace

std::string value_of(uint32_t value) { return raw(uint32_t(kU32)) + raw(value); }
std::string value_of(int32_t value) { return raw(uint32_t(kI32)) + raw(value); }
std::string value_of(float value) { return raw(uint32_t(kF32)) + raw(value); }
std::string value_of(bool value) { return raw(uint32_t(kBool)) + raw(uint8_t(value)); }
std::string value_of(const char* value) { return value_of(std::string(value)); }
std::string value_of(const std::string& value) { return raw(uint32_t(kText)) + raw_text(value); }
std::string value_of(const std::vector<uint32_t>& values) { return array_of(kU32, values); }
std::string value_of(const std::vector<int32_t>& values) { return array_of(kI32, values); }
std::string value_of(const std::vector<float>& values) { return array_of(kF32, values); }
std::string value_of(const std::vector<bool>& values) {
  std::string bytes = raw(uint32_t(kArray)) + raw(uint32_t(kBool)) + raw(uint64_t(values.size()));
  for (const bool value : values) bytes += char(value);
  return bytes;
}
std::string value_of(const std::vector<std::string>& values) {
  std::string bytes = raw(uint32_t(kArray)) + raw(uint32_t(kText)) + raw(uint64_t(values.size()));
  for (const std::string& value : values) bytes += raw_text(value);
  return bytes;
}

std::string SmallGguf::full(const std::string& key) const {
  for (const char* beginning : {"general.", "tokenizer.", "quantize.", "split."})
    if (key.starts_with(beginning)) return key;
  return architecture + "." + key;
}

SmallGguf& SmallGguf::tensor(const std::string& name, std::vector<uint64_t> shape, float mean) {
  uint64_t count = 1, seed = 0;
  for (const uint64_t dimension : shape) count *= dimension;
  for (const char c : name) seed = seed * 31 + static_cast<unsigned char>(c);
  Random random(seed);
  std::string data;
  for (uint64_t i = 0; i < count; ++i) data += raw(float(mean + 0.1 * random.normal()));
  std::ranges::reverse(shape);
  tensors[name] = {name, std::move(shape), 0, std::move(data), {}};
  return *this;
}

SmallGguf& SmallGguf::set_vocabulary(const Vocabulary& vocabulary) {
  std::vector<int32_t> kinds;
  for (const PieceKind kind : vocabulary.kinds) kinds.push_back(int32_t(kind));
  set("tokenizer.ggml.model", vocabulary.model);
  set("tokenizer.ggml.tokens", vocabulary.pieces);
  set("tokenizer.ggml.token_type", kinds);
  if (vocabulary.model == "gpt2") {
    set("tokenizer.ggml.pre", vocabulary.pre_tokenizer);
    set("tokenizer.ggml.merges", vocabulary.merges);
  } else {
    set("tokenizer.ggml.pre", "default");
    set("tokenizer.ggml.scores", vocabulary.scores);
  }
  if (vocabulary.bos) set("tokenizer.ggml.bos_token_id", uint32_t(*vocabulary.bos));
  if (vocabulary.eos) set("tokenizer.ggml.eos_token_id", uint32_t(*vocabulary.eos));
  if (vocabulary.unknown) set("tokenizer.ggml.unknown_token_id", uint32_t(*vocabulary.unknown));
  return tensor("token_embd.weight", {vocabulary.pieces.size(), kWidth});
}

std::string SmallGguf::file() const {
  GgufWriter writer;
  for (const auto& [key, value] : keys) writer.entries.push_back(raw_text(key) + value);
  for (const auto& [name, info] : tensors) writer.tensor(info);
  return writer.file();
}

SmallGguf small_gguf(const std::string& architecture, int layers) {
  SmallGguf file{.architecture = architecture, .keys = {}, .tensors = {}};
  file.set("general.architecture", architecture);
  file.set("block_count", uint32_t(layers));
  file.set("context_length", 256u);
  file.set("embedding_length", uint32_t(kWidth));
  file.set("feed_forward_length", uint32_t(kFeedForward));
  file.set("attention.head_count", uint32_t(kHeads));
  file.set("attention.head_count_kv", 1u);
  file.set("attention.layer_norm_rms_epsilon", 1e-6f);
  file.set("rope.freq_base", 500000.f);
  if (architecture == "gemma3") {
    file.set("attention.key_length", 64u).set("attention.value_length", 64u);
    file.set("attention.sliding_window", 16u);
    file.set("tokenizer.ggml.add_space_prefix", false);
    file.set_vocabulary(sentencepiece_vocabulary({"a", "b", "_", "ab", "_a"}));
  } else {
    file.set_vocabulary(
        byte_level_vocabulary(architecture == "llama" ? "gpt-2" : "qwen2", {{"a", "b"}, {" ", "a"}}));
  }
  for (int layer = 0; layer < layers; ++layer) add_block(file, layer);
  file.tensor("output_norm.weight", {kWidth}, 1);
  return file;
}

void resize_heads(SmallGguf& file, int layers, int head_dim) {
  for (int layer = 0; layer < layers; ++layer) add_attention(file, block_name(layer), uint64_t(head_dim));
  file.set("attention.key_length", uint32_t(head_dim)).set("attention.value_length", uint32_t(head_dim));
}

Model SmallGgufTest::load(const SmallGguf& file) const {
  return read_gguf_model(folder_.write("model.gguf", file.file()));
}

std::string SmallGgufTest::refusal(const SmallGguf& file) const {
  const std::string says = kveval::refusal([&] { load(file); });
  EXPECT_TRUE(says == "(accepted)" || says.starts_with(folder_.path() + "/model.gguf: ")) << says;
  return says;
}

}  // namespace kveval
