#include "engine/model/hf_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/model/file_error.h"
#include "engine/model/hf_config.h"
#include "engine/model/hf_text.h"
#include "engine/model/safetensors.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxConfigBytes = 16 << 20;

// Takes a checkpoint's tensors by name, in the shapes that the configuration asks for.
class Loader {
 public:
  Loader(std::string directory, TensorSet& tensors, const HfConfig& config)
      : directory_(std::move(directory)), tensors_(tensors), config_(config), model_(config.model) {
    find_prefix();
  }

  Weights weights() {
    Weights weights;
    weights.embedding = matrix(prefix_ + "embed_tokens.weight", model_.vocabulary, model_.width);
    for (size_t i = 0; i < model_.layers.size(); ++i)
      weights.layers.push_back(layer(fmt::format("{}layers.{}.", prefix_, i), model_.layers[i]));
    weights.output_norm = norm(prefix_ + "norm.weight", model_.width);
    weights.head = head(weights.embedding);
    return weights;
  }

  CacheScales cache_scales() { return read_cache_scales(tensors_, directory_, prefix_ + "layers", model_); }

  // A tensor that is left over would have changed the result. Rotations are computed, not read; images are
  // never asked about, so neither is the vision tower of a multimodal checkpoint.
  void refuse_unused() const {
    for (const std::string_view name : tensors_.unused()) {
      if (name.ends_with(".rotary_emb.inv_freq")) continue;
      if (config_.is_multimodal && is_of_vision(name)) continue;
      if (name.ends_with("_scale"))
        throw file_error(
            directory_, fmt::format("tensor {} is a scale that kveval does not use", quote(name)),
            "what it scales would be read wrongly; kveval reads k_scale, v_scale, kv_scale and the "
            "output_scale of k_proj and v_proj");
      throw file_error(directory_, fmt::format("tensor {} is not part of a {} model as kveval knows it",
                                               quote(name), model_.architecture));
    }
  }

 private:
  static bool is_of_vision(std::string_view name) {
    if (name.starts_with("model.")) name.remove_prefix(6);
    return name.starts_with("vision_tower.") || name.starts_with("multi_modal_projector.");
  }

  // Where the text model's tensors stand: in a multimodal checkpoint under "language_model", before or after
  // "model", as the version that wrote it.
  void find_prefix() {
    prefix_ = "model.";
    head_name_ = "lm_head.weight";
    if (!config_.is_multimodal) return;
    if (tensors_.peek("language_model.model.embed_tokens.weight")) {
      prefix_ = "language_model.model.";
      head_name_ = "language_model.lm_head.weight";
    } else {
      prefix_ = "model.language_model.";
    }
  }

  Tensor matrix(const std::string& name, int64_t rows, int64_t cols) {
    return tensors_.need(name, {rows, cols});
  }
  std::vector<float> vector(const std::string& name, int64_t size) {
    return floats_of(tensors_.need(name, {size}));
  }

  std::vector<float> norm(const std::string& name, int64_t size) {
    std::vector<float> values = vector(name, size);
    if (config_.gemma_norms)
      for (float& value : values) value += 1;
    return values;
  }

  LayerWeights layer(const std::string& at, const LayerConfig& shape) {
    const int64_t width = model_.width, q_rows = int64_t(shape.heads) * model_.head_dim,
                  kv_rows = int64_t(shape.kv_heads) * model_.head_dim;
    LayerWeights w;
    w.attention_norm = norm(at + "input_layernorm.weight", width);
    w.q = matrix(at + "self_attn.q_proj.weight", q_rows, width);
    w.k = matrix(at + "self_attn.k_proj.weight", kv_rows, width);
    w.v = matrix(at + "self_attn.v_proj.weight", kv_rows, width);
    w.o = matrix(at + "self_attn.o_proj.weight", width, q_rows);
    if (config_.qkv_biases) {
      w.q_bias = vector(at + "self_attn.q_proj.bias", q_rows);
      w.k_bias = vector(at + "self_attn.k_proj.bias", kv_rows);
      w.v_bias = vector(at + "self_attn.v_proj.bias", kv_rows);
    }
    if (config_.head_norms) {
      w.q_norm = norm(at + "self_attn.q_norm.weight", model_.head_dim);
      w.k_norm = norm(at + "self_attn.k_norm.weight", model_.head_dim);
    }
    // The same name for two norms: behind attention in Gemma, ahead of the feed-forward elsewhere.
    std::vector<float> after_attention = norm(at + "post_attention_layernorm.weight", width);
    if (config_.gemma_norms) {
      w.post_attention_norm = std::move(after_attention);
      w.ff_norm = norm(at + "pre_feedforward_layernorm.weight", width);
      w.post_ff_norm = norm(at + "post_feedforward_layernorm.weight", width);
    } else {
      w.ff_norm = std::move(after_attention);
    }
    w.gate = matrix(at + "mlp.gate_proj.weight", shape.ff, width);
    w.up = matrix(at + "mlp.up_proj.weight", shape.ff, width);
    w.down = matrix(at + "mlp.down_proj.weight", width, shape.ff);
    return w;
  }

  // Some writers store a tied head as well.
  Tensor head(const Tensor& embedding) {
    if (!config_.tied_head) return matrix(head_name_, model_.vocabulary, model_.width);
    if (const Tensor* copy = tensors_.find(head_name_);
        copy && (copy->type != embedding.type || !std::ranges::equal(copy->data, embedding.data)))
      throw file_error(directory_,
                       fmt::format("tensor {} differs from the embedding, though config.json ties them",
                                   quote(head_name_)));
    return embedding;
  }

  std::string directory_, prefix_, head_name_;
  TensorSet& tensors_;
  const HfConfig& config_;
  const ModelConfig& model_;
};

}  // namespace

Model read_hf_model(const std::string& directory) {
  std::error_code failed;
  if (!fs::is_directory(directory, failed)) throw file_error(directory, "is no directory");
  fs::path folder = fs::absolute(directory).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // written with a slash at its end
  const std::string name = folder.string(), config_path = (folder / "config.json").string();
  if (!fs::exists(config_path, failed))
    throw file_error(name, "has no config.json", "name the directory of a Hugging Face checkpoint");
  const HfConfig config = read_hf_config(config_path, read_json_file(config_path, kMaxConfigBytes));

  Model model;
  model.name = name;
  model.config = config.model;
  model.files = read_safetensors(name);
  Loader loader(name, model.files, config);
  model.weights = loader.weights();
  model.cache_scales = loader.cache_scales();
  loader.refuse_unused();
  read_hf_text(name, config, model);
  finish_loading(model);
  return model;
}

}  // namespace kveval
