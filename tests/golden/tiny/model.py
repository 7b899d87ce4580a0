"""What a tiny model is: its shape, its features, and its weights from a seed.

Weights live under names of our own ("embedding", "0.q", "0.attention_norm"), rows of Q and K in the order of
the papers (RoPE pairs i with i + head_dim/2), norms as the multiplier that they are. gguf.py and
huggingface.py rename and rearrange them as real files have them.
"""

import zlib
from dataclasses import dataclass
from typing import Optional

import numpy as np

from tiny.block_formats import encode


@dataclass(frozen=True)
class Scaling:
    kind: str  # "linear", "llama3" or "yarn"
    factor: float
    original_context: int = 0  # llama3, yarn
    low_frequency: float = 1.0  # llama3
    high_frequency: float = 4.0


@dataclass(frozen=True)
class Config:
    architecture: str  # GGUF's name: llama, qwen2, qwen3, gemma3
    hf_type: str  # Hugging Face's model_type: the same but for mistral
    layers: int = 2
    width: int = 256
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 256
    vocabulary: int = 384
    context: int = 512
    epsilon: float = 1e-5
    theta: float = 10000.0
    scaling: Optional[Scaling] = None
    tied: bool = False
    window: int = 0  # 0: none
    windows_alternate: bool = False  # gemma3: every sixth layer sees everything
    local_theta: float = 0.0  # of layers with a window, unscaled; 0: as everywhere
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norm: bool = False  # norms also behind attention and feed-forward
    embedding_scale: bool = False  # times sqrt(width)
    gelu: bool = False  # tanh form, instead of SiLU
    attention_scalar: int = 0  # scores are divided by its root; 0: head_dim

    def window_of(self, layer):
        everything = self.windows_alternate and layer % 6 == 5
        return 0 if everything else self.window


def layer_shapes(config):
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes = {
        "attention_norm": (config.width,), "ff_norm": (config.width,),
        "q": (q, config.width), "k": (kv, config.width), "v": (kv, config.width), "o": (config.width, q),
        "gate": (config.ff, config.width), "up": (config.ff, config.width), "down": (config.width, config.ff),
    }
    if config.qkv_bias:
        shapes |= {"q_bias": (q,), "k_bias": (kv,), "v_bias": (kv,)}
    if config.qk_norm:
        shapes |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.post_norm:
        shapes |= {"post_attention_norm": (config.width,), "post_ff_norm": (config.width,)}
    return shapes


def shapes(config):
    all_shapes = {"embedding": (config.vocabulary, config.width)}
    for layer in range(config.layers):
        all_shapes |= {f"{layer}.{part}": shape for part, shape in layer_shapes(config).items()}
    all_shapes["output_norm"] = (config.width,)
    if not config.tied:
        all_shapes["head"] = (config.vocabulary, config.width)
    return all_shapes


def part_of(name):
    """"0.q" -> "q"."""
    return name.split(".")[-1]


def is_matrix(name):
    return part_of(name) in ("embedding", "head", "q", "k", "v", "o", "gate", "up", "down")


# Standard deviation of what a matrix puts out for inputs of size 1. Q and K are large, so that attention
# picks some tokens and every error of position shows; what is added to the residual stream stays small.
GAINS = {"q": 1.5, "k": 1.5, "v": 1.0, "o": 0.5, "gate": 1.2, "up": 1.0, "down": 0.5}
TOKEN_SIZE = 0.15  # of embedding and head: logits then spread over 16 * 0.15 nats


def random_tensor(random, name, shape):
    part = part_of(name)
    values = random.standard_normal(shape)
    if part in GAINS:
        return values * (GAINS[part] / np.sqrt(shape[-1]))
    if part in ("embedding", "head"):
        return values * TOKEN_SIZE
    if part.endswith("_bias"):
        return values * 0.7
    # A norm: multiples of 1/128 below 2, exact in every float format, and so is Gemma's "minus one".
    centre = 1.5 if part in ("q_norm", "k_norm") else 1.0
    return np.clip(centre + np.rint(values * 0.2 * 128) / 128, 0.25, 1.9921875)


def make_weights(config, seed, format_of=lambda name: "F32"):
    """Every value is one that its format can hold, so that two files with the same formats hold the same.

    numpy promises RandomState's numbers for all its versions; each tensor has its own, so that none changes
    when another is added.
    """
    weights = {}
    for name, shape in shapes(config).items():
        random = np.random.RandomState(zlib.crc32(f"{seed} {name}".encode()))
        weights[name] = encode(random_tensor(random, name, shape), format_of(name)).decode()
    return weights


def make_ids(config, seed, count):
    return np.random.RandomState(zlib.crc32(f"{seed} ids".encode())).randint(0, config.vocabulary, count)
