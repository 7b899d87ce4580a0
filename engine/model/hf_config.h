// config.json of a Hugging Face checkpoint: what the model computes.
//
// Every key counts: one that is neither understood nor known to change nothing is refused by name. A key that
// is absent has the value that the checkpoint's own class gives it, which differs between classes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/config.h"
#include "engine/model/json_keys.h"
#include "engine/text/tokenizer.h"

namespace kveval {

struct HfConfig {
  ModelConfig model;
  bool tied_head = false;       // the head is the embedding
  bool qkv_biases = false;      // of the projections to queries, keys and values: qwen2
  bool head_norms = false;      // of queries and keys: qwen3, gemma3
  bool gemma_norms = false;     // four a layer, whose files hold the multiplier less one
  bool is_multimodal = false;   // the text model of a gemma3: a vision tower's tensors lie beside it
  std::vector<Token> bos, eos;  // ids; often none, or several eos
};

// `document` is the content of the config.json at `path`. model_type: llama, mistral, qwen2, qwen3,
// gemma3_text, or gemma3 with a text_config. Throws Error{bad_file} naming file and key.
HfConfig read_hf_config(const std::string& path, const nlohmann::json& document);

// The ids under `key`: none, one or a list.
std::vector<Token> token_ids(JsonKeys& keys, std::string_view key);

// The rotations of a model's layers, from either spelling: rope_theta with rope_scaling, or rope_parameters.
struct HfRopes {
  Rope full;     // of layers with full attention, and of all where there is one kind
  Rope sliding;  // of layers with a window, in Gemma 3
  int context;   // longer than max_position_embeddings where YaRN stretches it
};
struct HfRopeDefaults {
  double full_theta, sliding_theta;
  bool by_layer;  // Gemma 3: layers with a window have their own
};
HfRopes read_hf_ropes(JsonKeys& config, const HfRopeDefaults& defaults, int head_dim, int context);

// Refuses weights that are quantized. A scheme for the KV cache alone is fine: its scales are in the tensors.
void check_hf_quantization(JsonKeys& config);

}  // namespace kveval
