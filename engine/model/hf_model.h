// Models as Hugging Face directories hold them: config.json, model.safetensors or its index and shards,
// tokenizer.json, and where they are there tokenizer_config.json, chat_template.jinja and
// generation_config.json.
#pragma once

#include <string>

#include "engine/model/weights.h"

namespace kveval {

// Model::name is the directory's absolute path. Matrices stay in the files, which the model keeps mapped.
// Throws Error{bad_file} naming file and key or tensor for whatever is missing, malformed, contradictory,
// quantized or not understood; a chat template that is not understood is Model::chat_error instead.
Model read_hf_model(const std::string& directory);

// The FP8-KV scales of a checkpoint's attention layers, found under any of the names in use:
//   PREFIX.N.self_attn.k_scale, v_scale; self_attn.k_proj.k_scale, v_proj.v_scale;
//   self_attn.k_proj.output_scale, v_proj.output_scale; self_attn.kv_scale, which stands for both.
// A tensor of one value per KV head will do when all are equal. None: both vectors are empty. Throws
// Error{bad_file} beginning with `where` when a layer lacks its scales, spellings are mixed, or a scale is
// not a positive finite number.
CacheScales read_cache_scales(TensorSet& tensors, const std::string& where, const std::string& prefix,
                              const ModelConfig& config);

}  // namespace kveval
