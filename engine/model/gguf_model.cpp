#include "engine/model/gguf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/file_error.h"
#include "engine/model/gguf.h"
#include "engine/model/gguf_config.h"
#include "engine/model/gguf_vocabulary.h"
#include "engine/text/vocabulary.h"

namespace kveval {
namespace {

// Takes tensors by the file's names, each of exactly the shape that the configuration gives it.
class Source {
 public:
  explicit Source(TensorSet& tensors) : tensors_(tensors) {}

  bool has(const std::string& name) const { return tensors_.peek(name) != nullptr; }
  Tensor matrix(const std::string& name, int rows, int cols) { return tensors_.need(name, {rows, cols}); }
  std::vector<float> vector(const std::string& name, int size) {
    return floats_of(tensors_.need(name, {size}));
  }
  std::vector<float> vector_if(bool needed, const std::string& name, int size) {
    return needed || has(name) ? vector(name, size) : std::vector<float>();
  }

 private:
  TensorSet& tensors_;
};

LayerWeights read_layer(Source& source, size_t index, const ModelConfig& config,
                        const GgufArchitecture& architecture) {
  const LayerConfig& layer = config.layers[index];
  const int width = config.width, q_rows = layer.heads * config.head_dim,
            kv_rows = layer.kv_heads * config.head_dim;
  const auto name = [index](std::string_view part) { return fmt::format("blk.{}.{}", index, part); };
  LayerWeights w;
  w.attention_norm = source.vector(name("attn_norm.weight"), width);
  w.q = source.matrix(name("attn_q.weight"), q_rows, width);
  w.k = source.matrix(name("attn_k.weight"), kv_rows, width);
  w.v = source.matrix(name("attn_v.weight"), kv_rows, width);
  w.q_bias = source.vector_if(architecture.biases, name("attn_q.bias"), q_rows);
  w.k_bias = source.vector_if(architecture.biases, name("attn_k.bias"), kv_rows);
  w.v_bias = source.vector_if(architecture.biases, name("attn_v.bias"), kv_rows);
  if (architecture.head_norms) {
    w.q_norm = source.vector(name("attn_q_norm.weight"), config.head_dim);
    w.k_norm = source.vector(name("attn_k_norm.weight"), config.head_dim);
  }
  w.o = source.matrix(name("attn_output.weight"), width, q_rows);
  w.ff_norm = source.vector(name("ffn_norm.weight"), width);
  w.gate = source.matrix(name("ffn_gate.weight"), layer.ff, width);
  w.up = source.matrix(name("ffn_up.weight"), layer.ff, width);
  w.down = source.matrix(name("ffn_down.weight"), width, layer.ff);
  if (architecture.post_norms) {
    w.post_attention_norm = source.vector(name("post_attention_norm.weight"), width);
    w.post_ff_norm = source.vector(name("post_ffw_norm.weight"), width);
  }
  return w;
}

// Sets the vocabulary's size too: it is the embedding's, which files may pad.
Weights read_weights(Gguf& file, ModelConfig& config, const GgufArchitecture& architecture) {
  const Tensor& embedding = file.tensors.need("token_embd.weight");
  if (embedding.shape.size() != 2 || embedding.shape[0] > int64_t(kMaxPieces))
    throw file_error(file.metadata.path(),
                     fmt::format("tensor 'token_embd.weight' is {} where [at most {}, {}] is needed",
                                 shape_text(embedding.shape), kMaxPieces, config.width));
  config.vocabulary = int(embedding.shape[0]);
  const std::string size_key = config.architecture + ".vocab_size";
  const auto stated = file.metadata.count(size_key, UINT64_MAX);
  if (stated && *stated != uint64_t(config.vocabulary))
    throw file.metadata.error(size_key, fmt::format("is {}, tensor 'token_embd.weight' is {}", *stated,
                                                    shape_text(embedding.shape)));
  Source source(file.tensors);
  Weights weights;
  weights.embedding = source.matrix("token_embd.weight", config.vocabulary, config.width);
  for (size_t i = 0; i < config.layers.size(); ++i)
    weights.layers.push_back(read_layer(source, i, config, architecture));
  weights.output_norm = source.vector("output_norm.weight", config.width);
  weights.head = source.has("output.weight") ? source.matrix("output.weight", config.vocabulary, config.width)
                                             : weights.embedding;
  return weights;
}

// A checkpoint without a template may still have a token that ends a turn. (One more, eom_token_id, ends a
// call of a tool, which nobody offers here.)
void read_end_of_turn(GgufMetadata& metadata, const Vocabulary& vocabulary, ChatTemplate& chat) {
  const auto pieces = vocabulary.pieces.size();
  const auto end = metadata.count("tokenizer.ggml.eot_token_id", pieces - 1);
  metadata.count("tokenizer.ggml.eom_token_id", pieces - 1);
  if (end && chat.end_of_answer.empty()) chat.end_of_answer = vocabulary.pieces[size_t(*end)];
}

void read_text(GgufMetadata& metadata, Model& model) {
  const Vocabulary vocabulary = read_gguf_vocabulary(metadata, size_t(model.config.vocabulary));
  model.tokenizer = make_tokenizer(vocabulary);
  if (const auto jinja = metadata.text("tokenizer.chat_template"))
    set_chat(model, vocabulary, *jinja, metadata.path());
  read_end_of_turn(metadata, vocabulary, model.chat);
}

// Keys that describe: whatever they say, logits and tokens are the same.
bool is_harmless(std::string_view key, std::string_view architecture) {
  const std::string of_architecture = std::string(architecture) + '.';
  // vision and mm: of the encoder that turns images into embeddings, in a file of its own.
  const std::string prefixes[] = {"general.", "quantize.", "tokenizer.chat_template",
                                  of_architecture + "vision.", of_architecture + "mm."};
  if (std::ranges::any_of(prefixes, [&](const std::string& prefix) { return key.starts_with(prefix); }))
    return true;
  if (key == "tokenizer.huggingface.json" || key == of_architecture + "tensor_data_layout") return true;

  constexpr std::string_view kTokenizer = "tokenizer.ggml.";
  constexpr std::string_view kTokenizerKeys[] = {
      "padding_token_id", "seperator_token_id", "separator_token_id", "cls_token_id",     "mask_token_id",
      "prefix_token_id",  "suffix_token_id",    "middle_token_id",    "fim_pre_token_id", "fim_suf_token_id",
      "fim_mid_token_id", "fim_pad_token_id",   "fim_rep_token_id",   "fim_sep_token_id"};
  return key.starts_with(kTokenizer) &&
         std::ranges::find(kTokenizerKeys, key.substr(kTokenizer.size())) != std::end(kTokenizerKeys);
}

void refuse_unread(const Gguf& file, std::string_view architecture) {
  constexpr const char* kHint = "kveval refuses rather than guesses: use a checkpoint without it";
  for (const std::string_view key : file.metadata.unread())
    if (!is_harmless(key, architecture))
      throw file.metadata.error(key, "is unknown, so kveval cannot tell what it changes", kHint);
  const auto unused = file.tensors.unused();
  if (!unused.empty())
    throw file_error(
        file.metadata.path(),
        fmt::format("tensor {} is unknown to the architecture {} as kveval runs it{}", quote(unused[0]),
                    architecture, unused.size() > 1 ? fmt::format(" ({} such tensors)", unused.size()) : ""),
        kHint);
}

}  // namespace

Model read_gguf_model(const std::string& path) {
  Gguf file = read_gguf(path);
  // The blocks of Q4_0 and Q8_0 were others under version 1.
  constexpr uint64_t kQuantizationVersion = 2;
  const auto version = file.metadata.count("general.quantization_version", UINT64_MAX);
  if (version.value_or(kQuantizationVersion) != kQuantizationVersion)
    throw file.metadata.error("general.quantization_version",
                              fmt::format("is {}, kveval reads {}", *version, kQuantizationVersion),
                              "quantize the checkpoint again with a current llama.cpp");
  const GgufArchitecture& architecture = gguf_architecture(file.metadata);
  Model model;
  model.name = std::filesystem::absolute(path).lexically_normal().string();
  model.config = read_gguf_config(file, architecture);
  model.weights = read_weights(file, model.config, architecture);
  naming(path, [&] { read_text(file.metadata, model); });
  refuse_unread(file, architecture.name);
  model.files = std::move(file.tensors);
  finish_loading(model);
  return model;
}

}  // namespace kveval
