#include "engine/model/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/model/file_error.h"
#include "engine/text/vocabulary.h"

namespace kveval {
namespace {

constexpr int kMinWidth = 64;

// What a class of transformers takes for keys that a config.json leaves out; 0: it must be there.
struct Class {
  std::string_view model_type, architecture;
  int width, ff, layers, heads, kv_heads, vocabulary;  // kv_heads 0: as many as heads
  int context;
  int head_dim;  // 0: width / heads
  bool tied;
  bool qkv_biases, head_norms;
  int window;  // of layers that have one
};
constexpr std::array<Class, 5> kClasses = {{
    {"llama", "llama", 0, 0, 0, 0, 0, 0, 2048, 0, false, false, false, 0},
    {"mistral", "llama", 0, 0, 0, 0, 8, 0, 131072, 0, false, false, false, 4096},
    {"qwen2", "qwen2", 0, 0, 0, 0, 32, 0, 32768, 0, false, true, false, 4096},
    {"qwen3", "qwen3", 0, 0, 0, 0, 32, 0, 32768, 128, false, false, true, 4096},
    // The larger Gemma 3 checkpoints leave out whatever their 4B model has by default.
    {"gemma3_text", "gemma3", 2304, 9216, 26, 8, 4, 262208, 131072, 256, true, false, true, 4096},
}};

const Class& class_of(JsonKeys& keys) {
  const std::optional<std::string> type = keys.text("model_type");
  if (!type) throw keys.error("model_type", "is missing");
  for (const Class& one : kClasses)
    if (one.model_type == *type) return one;
  throw keys.error(
      "model_type",
      fmt::format("is {}; kveval knows llama, mistral, qwen2, qwen3, gemma3 and gemma3_text", quote(*type)));
}

int size_in(JsonKeys& keys, std::string_view key, int when_absent, int64_t max) {
  const int64_t size =
      when_absent > 0 ? keys.integer(key, 1, max).value_or(when_absent) : keys.need_integer(key, 1, max);
  return int(size);
}

// Neither what was done in training nor what generation or a program does around the model changes a
// forward pass. Old files hold every option of generate().
void ignore_harmless(JsonKeys& keys) {
  keys.ignore({"_name_or_path",
               "transformers_version",
               "torch_dtype",
               "dtype",
               "use_cache",
               "initializer_range",
               "attention_dropout",
               "pad_token_id",
               "pretraining_tp",
               "_attn_implementation",
               "_attn_implementation_autoset",
               "attn_implementation",
               "cache_implementation",
               "is_llama_config",
               "transformers.js_config",
               "max_sequence_length",
               "unsloth_fixed",
               "unsloth_version",
               "gradient_checkpointing",
               "torchscript",
               "use_bfloat16",
               "tf_legacy_loss",
               "tokenizer_class",
               "task_specific_params",
               "problem_type",
               "finetuning_task",
               "id2label",
               "label2id",
               "return_dict",
               "output_attentions",
               "output_hidden_states",
               "output_scores",
               "return_dict_in_generate",
               "chunk_size_feed_forward",
               "is_decoder",
               "prefix",
               "sep_token_id",
               "decoder_start_token_id"});
  keys.ignore({"do_sample",
               "early_stopping",
               "max_length",
               "max_new_tokens",
               "min_length",
               "num_beams",
               "num_beam_groups",
               "num_return_sequences",
               "temperature",
               "top_k",
               "top_p",
               "typical_p",
               "diversity_penalty",
               "length_penalty",
               "repetition_penalty",
               "no_repeat_ngram_size",
               "encoder_no_repeat_ngram_size",
               "bad_words_ids",
               "suppress_tokens",
               "begin_suppress_tokens",
               "forced_bos_token_id",
               "forced_eos_token_id",
               "remove_invalid_values",
               "exponential_decay_length_penalty"});
  for (const char* key : {"is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder", "mlp_bias",
                          "rope_interleaved", "use_mrope", "use_bidirectional_attention"})
    keys.require(key, false);
  keys.require("pruned_heads", nlohmann::json::object());
}

// Models with another head, or none, share their model_type with those that predict a token.
void check_architectures(JsonKeys& keys) {
  for (const std::string& name : keys.texts("architectures").value_or(std::vector<std::string>{}))
    if (!name.ends_with("ForCausalLM") && !name.ends_with("ForConditionalGeneration"))
      throw keys.error("architectures", fmt::format("holds {}, which predicts no token", quote(name)));
}

Activation read_activation(JsonKeys& keys, bool is_gemma) {
  // Gemma's class has a key of its own, and ignores the one that earlier Gemmas had.
  if (is_gemma) keys.require("hidden_act", "gelu_pytorch_tanh");
  const std::string_view key = is_gemma ? "hidden_activation" : "hidden_act";
  const std::string name = keys.text(key).value_or(is_gemma ? "gelu_pytorch_tanh" : "silu");
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  throw keys.error(key, fmt::format("is {}; kveval knows silu and gelu_pytorch_tanh", quote(name)));
}

// Layers without a window have 0. `window` is the one of those that have one, 0 where it is switched off.
std::vector<int> windows_by_rule(JsonKeys& keys, const Class& of, int layers, int window) {
  std::vector<int> windows(size_t(layers), window);
  if (of.model_type == "qwen2" || of.model_type == "qwen3") {
    const int64_t full = keys.integer("max_window_layers", 0, INT32_MAX).value_or(28);
    std::fill_n(windows.begin(), std::min(full, int64_t(layers)), 0);
  } else if (of.model_type == "gemma3_text") {
    const std::optional<int64_t> old_key = keys.integer("sliding_window_pattern", 1, kMaxLayers);
    const std::optional<int64_t> new_key = keys.integer("_sliding_window_pattern", 1, kMaxLayers);
    const int64_t pattern = old_key ? *old_key : new_key.value_or(6);
    for (int64_t i = pattern - 1; i < layers; i += pattern) windows[size_t(i)] = 0;
  }
  return windows;
}

std::vector<int> read_windows(JsonKeys& keys, const Class& of, int layers) {
  const bool is_qwen = of.model_type == "qwen2" || of.model_type == "qwen3";
  int window = 0;
  if (of.window > 0) {
    const bool is_off = is_qwen && !keys.flag("use_sliding_window").value_or(false);
    window = int(keys.integer("sliding_window", 1, INT32_MAX).value_or(of.window));
    if (is_off || keys.has_null("sliding_window")) window = 0;
    if (window == 0 && !is_qwen && of.model_type != "mistral")
      throw keys.error("sliding_window", "is null, but most of this model's layers have a window");
  }
  std::vector<int> windows = windows_by_rule(keys, of, layers, window);

  const std::optional<std::vector<std::string>> types = keys.texts("layer_types");
  if (!types) return windows;
  if (types->size() != size_t(layers))
    throw keys.error("layer_types", fmt::format("has {} entries for {} layers", types->size(), layers));
  for (size_t i = 0; i < types->size(); ++i) {
    const bool slides = (*types)[i] == "sliding_attention";
    if (!slides && (*types)[i] != "full_attention")
      throw keys.error(
          "layer_types",
          fmt::format("holds {}; kveval knows full_attention and sliding_attention", quote((*types)[i])));
    if (slides && window == 0)
      throw keys.error("layer_types", fmt::format("says sliding_attention for layer {}, but there is no "
                                                  "sliding_window",
                                                  i));
    const int listed = slides ? window : 0;
    if (of.model_type == "mistral" && listed != windows[i])
      throw keys.error("layer_types", fmt::format("says {} for layer {}, which has a window of {}",
                                                  quote((*types)[i]), i, windows[i]));
    windows[i] = listed;
  }
  return windows;
}

void read_ropes(JsonKeys& keys, bool is_gemma, ModelConfig& model) {
  const HfRopeDefaults defaults{is_gemma ? 1e6 : 1e4, 1e4, is_gemma};
  HfRopes ropes = read_hf_ropes(keys, defaults, model.head_dim, model.context);
  model.context = ropes.context;
  model.ropes = {std::move(ropes.full)};
  if (!is_gemma) return;
  model.ropes.push_back(std::move(ropes.sliding));
  for (LayerConfig& layer : model.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

std::vector<LayerConfig> read_layers(JsonKeys& keys, const Class& of) {
  LayerConfig layer;
  const int layers = size_in(keys, "num_hidden_layers", of.layers, kMaxLayers);
  layer.heads = size_in(keys, "num_attention_heads", of.heads, kMaxHeads);
  // As many as heads where the class says so, and where the file says null.
  const bool has_own = of.kv_heads > 0 && !keys.has_null("num_key_value_heads");
  layer.kv_heads = size_in(keys, "num_key_value_heads", has_own ? of.kv_heads : layer.heads, kMaxHeads);
  layer.ff = size_in(keys, "intermediate_size", of.ff, kMaxFeedForward);
  if (layer.heads % layer.kv_heads != 0)
    throw keys.error("num_key_value_heads",
                     fmt::format("is {}, which does not divide {} heads", layer.kv_heads, layer.heads));
  std::vector<LayerConfig> all(size_t(layers), layer);
  const std::vector<int> windows = read_windows(keys, of, layers);
  for (size_t i = 0; i < windows.size(); ++i) all[i].window = windows[i];
  return all;
}

int read_head_dim(JsonKeys& keys, const Class& of, int width, int heads) {
  const int when_absent = of.head_dim > 0 ? of.head_dim : std::max(1, width / heads);
  const int head_dim = size_in(keys, "head_dim", when_absent, kMaxHeadDim);
  if (!keys.has("head_dim") && of.head_dim == 0 && width % heads != 0)
    throw keys.error("num_attention_heads",
                     fmt::format("is {}, which does not divide hidden_size {}", heads, width));
  if (!is_known_head_dim(head_dim))
    throw keys.error("head_dim", fmt::format("is {}; kveval knows 64, 128 and 256", head_dim));
  return head_dim;
}

void read_gemma_scales(JsonKeys& keys, ModelConfig& model) {
  model.embedding_scale = float(std::sqrt(double(model.width)));
  const double scalar = keys.number("query_pre_attn_scalar").value_or(256);
  if (!(scalar > 0)) throw keys.error("query_pre_attn_scalar", fmt::format("is {}, not above 0", scalar));
  model.score_scale = 1 / std::sqrt(scalar);
  for (const char* key : {"final_logit_softcapping", "attn_logit_softcapping"})
    if (keys.has(key)) throw keys.error(key, "is set, and kveval does not cap logits");
}

ModelConfig read_model(JsonKeys& keys, const Class& of) {
  const bool is_gemma = of.model_type == "gemma3_text";
  ModelConfig model;
  model.architecture = std::string(of.architecture);
  model.width = size_in(keys, "hidden_size", of.width, kMaxWidth);
  // No model is as narrow; a tokenizer of a million pieces would be asked for by a file of two megabytes.
  if (model.width < kMinWidth)
    throw keys.error("hidden_size", fmt::format("is {}; kveval knows {} and more", model.width, kMinWidth));
  model.vocabulary = size_in(keys, "vocab_size", of.vocabulary, int64_t(kMaxPieces));
  model.context = size_in(keys, "max_position_embeddings", of.context, kMaxContext);
  model.activation = read_activation(keys, is_gemma);
  model.layers = read_layers(keys, of);
  model.head_dim = read_head_dim(keys, of, model.width, model.layers[0].heads);
  const double epsilon = keys.number("rms_norm_eps").value_or(1e-6);
  if (!(epsilon > 0 && epsilon < 1))
    throw keys.error("rms_norm_eps", fmt::format("is {}, not between 0 and 1", epsilon));
  model.norm_epsilon = float(epsilon);
  if (is_gemma) read_gemma_scales(keys, model);
  // qwen2's biases are not up to its files; where others have one, the output has one too.
  keys.require("attention_bias", of.qkv_biases);
  read_ropes(keys, is_gemma, model);
  return model;
}

void read_shared(JsonKeys& keys, HfConfig& config) {
  if (const auto ids = token_ids(keys, "bos_token_id"); !ids.empty()) config.bos = ids;
  if (const auto ids = token_ids(keys, "eos_token_id"); !ids.empty()) config.eos = ids;
  check_architectures(keys);
  check_hf_quantization(keys);
  ignore_harmless(keys);
}

HfConfig read_text_model(JsonKeys& keys) {
  const Class& of = class_of(keys);
  HfConfig config;
  config.model = read_model(keys, of);
  config.tied_head = keys.flag("tie_word_embeddings").value_or(of.tied);
  config.qkv_biases = of.qkv_biases;
  config.head_norms = of.head_norms;
  config.gemma_norms = of.model_type == "gemma3_text";
  read_shared(keys, config);
  keys.refuse_unread();
  return config;
}

}  // namespace

std::vector<Token> token_ids(JsonKeys& keys, std::string_view key) {
  std::vector<Token> ids;
  for (const int64_t id : keys.integers(key, -1, int64_t(kMaxPieces) - 1))
    if (id >= 0) ids.push_back(Token(id));  // -1: none, in old files
  return ids;
}

HfConfig read_hf_config(const std::string& path, const nlohmann::json& document) {
  JsonKeys keys(path, document);
  if (keys.text("model_type") != "gemma3") return read_text_model(keys);
  std::optional<JsonKeys> text = keys.object("text_config");
  if (!text) throw keys.error("text_config", "is missing");
  text->require("model_type", "gemma3_text");
  HfConfig config = read_text_model(*text);
  config.is_multimodal = true;
  const bool tied = keys.flag("tie_word_embeddings").value_or(config.tied_head);
  if (tied != config.tied_head) throw keys.error("tie_word_embeddings", "contradicts the one of text_config");
  read_shared(keys, config);
  // Images are never asked about.
  keys.ignore({"vision_config", "boi_token_index", "eoi_token_index", "image_token_index",
               "mm_tokens_per_image", "boi_token_id", "eoi_token_id", "image_token_id"});
  keys.refuse_unread();
  return config;
}

}  // namespace kveval
