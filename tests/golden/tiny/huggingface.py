"""Hugging Face directories: config.json and safetensors as transformers writes them.

What differs from a model's own weights: Gemma's norms hold the multiplier minus one.
"""

import json
import struct

from tiny.block_formats import encode
from tiny.model import part_of

DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

TENSOR_NAMES = {"embedding": "model.embed_tokens.weight", "output_norm": "model.norm.weight",
                "head": "lm_head.weight"}
LAYER_NAMES = {
    "attention_norm": "input_layernorm.weight", "ff_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias", "v_bias": "self_attn.v_proj.bias",
    "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight",
}
GEMMA_LAYER_NAMES = {
    "post_attention_norm": "post_attention_layernorm.weight",  # the name that others give the next norm
    "ff_norm": "pre_feedforward_layernorm.weight",
    "post_ff_norm": "post_feedforward_layernorm.weight",
}


def tensor_name(config, name):
    if name in TENSOR_NAMES:
        return TENSOR_NAMES[name]
    layer, part = name.split(".")
    names = LAYER_NAMES | GEMMA_LAYER_NAMES if config.architecture == "gemma3" else LAYER_NAMES
    return f"model.layers.{layer}.{names[part]}"


def has_norms_less_one(config):
    return config.architecture == "gemma3"


def is_norm(name):
    return part_of(name).endswith("norm")


def encode_tensors(config, weights, format_of):
    """Our names -> Encoded, as the file has them."""
    less_one = has_norms_less_one(config)
    return {name: encode(values - 1 if less_one and is_norm(name) else values, format_of(name))
            for name, values in weights.items()}


def decode_tensors(config, tensors):
    less_one = has_norms_less_one(config)
    return config, {name: tensor.decode() + (1 if less_one and is_norm(name) else 0)
                    for name, tensor in tensors.items()}


# ------------------------------------------------------------------------------------------------ FP8 scales

# Where checkpoints keep the scales of an FP8 cache: our naming -> keys' tensor, values' tensor.
SCALE_NAMES = {
    "attention": ("self_attn.k_scale", "self_attn.v_scale"),
    "projection": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "projection-output": ("self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"),
    "shared": ("self_attn.kv_scale", "self_attn.kv_scale"),
}
KV_CACHE_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
SCALE_CONFIGS = {  # quantization_config; none goes with the oldest spelling
    "attention": {"quant_method": "compressed-tensors", "format": "dense", "quantization_status": "compressed",
                  "config_groups": {}, "ignore": [], "kv_cache_scheme": KV_CACHE_SCHEME},
    "projection": {"quant_method": "modelopt", "quant_algo": None, "kv_cache_quant_algo": "FP8",
                   "kv_cache_scheme": KV_CACHE_SCHEME},
    "projection-output": {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {},
                          "ignore": ["lm_head"], "kv_cache_scheme": KV_CACHE_SCHEME},
}


def scale_tensors(naming, k_scales, v_scales):
    """File names -> Encoded, one number each; some writers give it a dimension."""
    k_name, v_name = SCALE_NAMES[naming]
    tensors = {}
    for layer, (k, v) in enumerate(zip(k_scales, v_scales)):
        shaped = (lambda scale: [scale]) if naming.startswith("projection") else (lambda scale: scale)
        tensors[f"model.layers.{layer}.{k_name}"] = encode(shaped(k), "F32")
        tensors[f"model.layers.{layer}.{v_name}"] = encode(shaped(v), "F32")
    return tensors


# ------------------------------------------------------------------------------------------------ config.json


def rope_type_entries(scaling):
    if scaling is None:
        return {"rope_type": "default"}
    entries = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.original_context:
        entries["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        entries |= {"low_freq_factor": scaling.low_frequency, "high_freq_factor": scaling.high_frequency}
    return entries


def rope_entries(config, as_parameters):
    """Two spellings: rope_scaling beside rope_theta, and transformers 5's rope_parameters."""
    entries = rope_type_entries(config.scaling)
    if not as_parameters:
        if config.architecture == "qwen2" and config.scaling:
            entries["type"] = entries.pop("rope_type")  # as Qwen's model cards write it
        spelled = {"rope_theta": config.theta, "rope_scaling": entries if config.scaling else None}
        return spelled | ({"rope_local_base_freq": config.local_theta} if config.local_theta else {})
    entries["rope_theta"] = config.theta
    if config.local_theta:
        local = {"rope_type": "default", "rope_theta": config.local_theta}
        entries = {"full_attention": entries, "sliding_attention": local}
    return {"rope_parameters": entries}


CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
           "qwen3": "Qwen3ForCausalLM", "gemma3_text": "Gemma3ForCausalLM"}


def model_config(config, dtype, bos, eos, as_parameters):
    document = {
        "architectures": [CLASSES[config.hf_type]],
        "model_type": config.hf_type,
        "attention_dropout": 0.0,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "hidden_size": config.width,
        "initializer_range": 0.02,
        "intermediate_size": config.ff,
        "max_position_embeddings": config.context,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "num_key_value_heads": config.kv_heads,
        "rms_norm_eps": config.epsilon,
        "use_cache": True,
        "vocab_size": config.vocabulary,
        "dtype" if as_parameters else "torch_dtype": DTYPES[dtype],
    } | rope_entries(config, as_parameters)
    if config.hf_type == "gemma3_text":  # tied by default, so its files leave tie_word_embeddings out
        document |= {"head_dim": config.head_dim, "hidden_activation": "gelu_pytorch_tanh",
                     "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
                     "query_pre_attn_scalar": config.attention_scalar or config.head_dim,
                     "sliding_window": config.window}
        if as_parameters:
            document["layer_types"] = ["sliding_attention" if config.window_of(layer) else "full_attention"
                                       for layer in range(config.layers)]
        else:
            document["sliding_window_pattern"] = 6
        return document
    document |= {"hidden_act": "silu", "tie_word_embeddings": config.tied}
    if config.hf_type == "llama":
        document |= {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1,
                     "head_dim": config.head_dim}
    if config.hf_type == "mistral":
        document["sliding_window"] = config.window or None
    if config.hf_type in ("qwen2", "qwen3"):  # a window that is written down and switched off
        document |= {"use_sliding_window": False, "sliding_window": 16, "max_window_layers": config.layers}
    if config.hf_type == "qwen3":
        document |= {"head_dim": config.head_dim, "attention_bias": False}
    return document


def multimodal_config(text_config):
    """Gemma 3 from 4B up: the text model's configuration is a part, its tensors have a prefix."""
    return {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "eos_token_id": [text_config["eos_token_id"], text_config["eos_token_id"] + 1],
            "image_token_index": 300, "mm_tokens_per_image": 4, "text_config": text_config,
            "vision_config": {"model_type": "siglip_vision_model", "hidden_size": 8}}


def multimodal_tensors(named):
    """Names in the file -> Encoded, with something that sees."""
    vision = {"vision_tower.vision_model.post_layernorm.weight": encode([1.0] * 8, "F16"),
              "multi_modal_projector.mm_input_projection_weight": encode([[0.5] * 8] * 4, "F16")}
    return {f"language_model.{name}": tensor for name, tensor in named.items()} | vision


# ---------------------------------------------------------------------------------------------- the directory


def safetensors_bytes(tensors):
    """`tensors`: names in the file -> Encoded."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.format, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(tensor.data for tensor in tensors.values())


def write_json(path, document):
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_weights(folder, tensors, shards):
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors))
        return
    names = sorted(tensors)
    per_shard = -(-len(names) // shards)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[number * per_shard:(number + 1) * per_shard]}
        (folder / file).write_bytes(safetensors_bytes(part))
        weight_map |= {name: file for name in part}
    total = sum(len(tensor.data) for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": total}, "weight_map": weight_map})


def write(folder, config_json, tensors, tokenizer_files, shards=1):
    """`tensors`: names in the file -> Encoded."""
    folder.mkdir(parents=True, exist_ok=True)
    write_weights(folder, tensors, shards)
    for file, document in ({"config.json": config_json} | tokenizer_files).items():
        write_json(folder / file, document)
