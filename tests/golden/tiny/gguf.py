"""GGUF version 3: the keys, names and arrangements that converters write.

What differs from a model's own weights: matrices of llama have the rows of Q and K permuted so that RoPE
pairs 2i and 2i + 1; Llama 3's frequency scaling is a tensor of divisors and no key; norms are float32.
"""

import dataclasses
import struct

import numpy as np

from tiny.block_formats import FORMATS, encode
from tiny.forward import llama3_divisors
from tiny.model import is_matrix, part_of

ALIGNMENT = 32

TENSOR_NAMES = {"embedding": "token_embd.weight", "output_norm": "output_norm.weight", "head": "output.weight",
                "rope_divisors": "rope_freqs.weight"}
LAYER_NAMES = {
    "attention_norm": "attn_norm.weight", "ff_norm": "ffn_norm.weight",
    "q": "attn_q.weight", "k": "attn_k.weight", "v": "attn_v.weight", "o": "attn_output.weight",
    "q_bias": "attn_q.bias", "k_bias": "attn_k.bias", "v_bias": "attn_v.bias",
    "q_norm": "attn_q_norm.weight", "k_norm": "attn_k_norm.weight",
    "post_attention_norm": "post_attention_norm.weight", "post_ff_norm": "post_ffw_norm.weight",
    "gate": "ffn_gate.weight", "up": "ffn_up.weight", "down": "ffn_down.weight",
}


def tensor_name(name):
    if name in TENSOR_NAMES:
        return TENSOR_NAMES[name]
    layer, part = name.split(".")
    return f"blk.{layer}.{LAYER_NAMES[part]}"


def interleave_rows(matrix, heads):
    """Row i of a head's first half and row i of its second become rows 2i and 2i + 1."""
    rows, cols = matrix.shape
    return matrix.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def is_interleaved(config):
    return config.architecture == "llama"


def encode_tensors(config, weights, matrix_format):
    """Our names -> Encoded, in the arrangement of the file."""
    tensors = {}
    for name, values in weights.items():
        if is_interleaved(config) and part_of(name) in ("q", "k"):
            values = interleave_rows(values, config.heads if part_of(name) == "q" else config.kv_heads)
        tensors[name] = encode(values, matrix_format if is_matrix(name) else "F32")
    if config.scaling and config.scaling.kind == "llama3":
        frequencies = config.theta ** (-2.0 * np.arange(config.head_dim // 2) / config.head_dim)
        tensors["rope_divisors"] = encode(llama3_divisors(frequencies, config.scaling), "F32")
    return tensors


def decode_tensors(config, tensors):
    """What forward() takes: the configuration (llama3 scaling has become divisors) and float64 weights."""
    if "rope_divisors" in tensors:
        config = dataclasses.replace(config, scaling=None)
    return config, {name: tensor.decode() for name, tensor in tensors.items()}


# ------------------------------------------------------------------------------------------------------ keys

U8, U16, U32, I32, F32, BOOL, TEXT, ARRAY = 0, 2, 4, 5, 6, 7, 8, 9
PACKED = {U8: "<B", U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}


def model_keys(config, name, matrix_format, always_head_dim=False):
    """(key, type, value); values of arrays are (element type, list)."""
    a = config.architecture
    keys = [
        ("general.architecture", TEXT, a),
        ("general.type", TEXT, "model"),
        ("general.name", TEXT, name),
        (f"{a}.block_count", U32, config.layers),
        (f"{a}.context_length", U32, config.context),
        (f"{a}.embedding_length", U32, config.width),
        (f"{a}.feed_forward_length", U32, config.ff),
        (f"{a}.attention.head_count", U32, config.heads),
        (f"{a}.attention.head_count_kv", U32, config.kv_heads),
        (f"{a}.rope.freq_base", F32, config.theta),
        (f"{a}.attention.layer_norm_rms_epsilon", F32, config.epsilon),
        ("general.file_type", U32, FORMATS[matrix_format].file_type),
        ("general.quantization_version", U32, 2),
    ]
    if always_head_dim or a in ("qwen3", "gemma3"):
        keys += [(f"{a}.attention.key_length", U32, config.head_dim),
                 (f"{a}.attention.value_length", U32, config.head_dim)]
    if a == "llama":
        keys += [("llama.vocab_size", U32, config.vocabulary),
                 ("llama.rope.dimension_count", U32, config.head_dim)]
    if config.window:
        keys.append((f"{a}.attention.sliding_window", U32, config.window))
    if config.scaling and config.scaling.kind != "llama3":
        keys += [(f"{a}.rope.scaling.type", TEXT, config.scaling.kind),
                 (f"{a}.rope.scaling.factor", F32, config.scaling.factor)]
    if config.scaling and config.scaling.kind == "yarn":
        keys.append((f"{a}.rope.scaling.original_context_length", U32, config.scaling.original_context))
    return keys


def spelled_out_windows(config):
    """Keys that newer converters add for gemma3."""
    local = [config.window_of(layer) > 0 for layer in range(config.layers)]
    return [("gemma3.attention.sliding_window_pattern", ARRAY, (BOOL, local)),
            ("gemma3.rope.freq_base_swa", F32, config.local_theta)]


# ------------------------------------------------------------------------------------------------- the file


def text_bytes(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind, value):
    if kind == TEXT:
        return text_bytes(value)
    if kind == ARRAY:
        element, values = value
        return struct.pack("<IQ", element, len(values)) + b"".join(value_bytes(element, v) for v in values)
    return struct.pack(PACKED[kind], value)


def padding(length, alignment):
    return b"\0" * (-length % alignment)


def file_bytes(keys, tensors, alignment=ALIGNMENT):
    """`tensors`: our names -> Encoded."""
    if alignment != ALIGNMENT:
        keys = keys + [("general.alignment", U32, alignment)]
    header = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys))
    for key, kind, value in keys:
        header += text_bytes(key) + struct.pack("<I", kind) + value_bytes(kind, value)
    data = []
    offset = 0
    for name, tensor in tensors.items():
        header += text_bytes(tensor_name(name)) + struct.pack("<I", len(tensor.shape))
        header += struct.pack(f"<{len(tensor.shape)}Q", *reversed(tensor.shape))
        header += struct.pack("<IQ", FORMATS[tensor.format].ggml_type, offset)
        padded = tensor.data + padding(len(tensor.data), alignment)
        data.append(padded)
        offset += len(padded)
    return header + padding(len(header), alignment) + b"".join(data)


def write(folder, keys, tensors, files=1, alignment=ALIGNMENT):
    """Returns the (first) file's name. All keys are in the first file, tensors are spread over all."""
    if files == 1:
        (folder / "model.gguf").write_bytes(file_bytes(keys, tensors, alignment))
        return "model.gguf"
    names = list(tensors)
    per_file = -(-len(names) // files)
    for number in range(files):
        split = [("split.no", U16, number), ("split.count", U16, files),
                 ("split.tensors.count", I32, len(names))]
        part = {name: tensors[name] for name in names[number * per_file:(number + 1) * per_file]}
        path = folder / f"model-{number + 1:05}-of-{files:05}.gguf"
        path.write_bytes(file_bytes(split if number else keys + split, part, alignment))
    return f"model-00001-of-{files:05}.gguf"
