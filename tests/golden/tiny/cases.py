"""The list of checkpoints: together every architecture, feature, tensor type and spelling that kveval reads."""

from dataclasses import dataclass, replace
from typing import Optional

from tiny.block_formats import FORMATS
from tiny.model import Config, Scaling, is_matrix


@dataclass(frozen=True)
class GgufForm:
    matrices: str = "F32"  # the format of all matrices, the embedding's too; the rest is float32
    files: int = 1
    alignment: int = 32
    always_head_dim: bool = False  # converters write key_length only where config.json has a head_dim
    windows_spelled_out: bool = False


@dataclass(frozen=True)
class HfForm:
    dtype: str = "F32"
    vectors: Optional[str] = None  # norms and biases, where they differ
    rope_parameters: bool = False  # transformers 5's spelling
    shards: int = 1
    merges_as_pairs: bool = True
    scales: Optional[str] = None  # a naming of huggingface.SCALE_NAMES
    multimodal: bool = False  # the text model is one part of a larger one

    def format_of(self, name):
        return self.dtype if is_matrix(name) else self.vectors or self.dtype


@dataclass(frozen=True)
class Case:
    name: str
    config: Config
    tokenizer: str
    gguf: Optional[GgufForm] = None
    hf: Optional[HfForm] = None

    @property
    def seed(self):
        return self.name


LLAMA = Config("llama", "llama")
MISTRAL = Config("llama", "mistral", window=16)
QWEN2 = Config("qwen2", "qwen2", qkv_bias=True, epsilon=1e-6, theta=1e6)
QWEN3 = Config("qwen3", "qwen3", qk_norm=True, epsilon=1e-6, theta=1e6, head_dim=128)
GEMMA3 = Config("gemma3", "gemma3_text", layers=7, heads=4, kv_heads=1, epsilon=1e-6, theta=1e6, tied=True,
                scaling=Scaling("linear", 8.0), window=16, windows_alternate=True, local_theta=10000.0,
                qk_norm=True, post_norm=True, embedding_scale=True, gelu=True)
# Small originals, so that 48 tokens see the scaling.
LLAMA3_ROPE = Scaling("llama3", 8.0, original_context=32)
YARN = Scaling("yarn", 4.0, original_context=128)

CASES = [
    Case("llama-f32", replace(LLAMA, layers=3), "llama", GgufForm("F32"), HfForm("F32")),
    Case("llama-bf16-llama3-rope-tied", replace(LLAMA, tied=True, theta=500000.0, scaling=LLAMA3_ROPE),
         "llama-bpe", GgufForm("BF16", always_head_dim=True), HfForm("BF16")),
    Case("llama-f16-linear-rope", replace(LLAMA, ff=512, scaling=Scaling("linear", 4.0)), "smollm",
         GgufForm("F16", alignment=64), HfForm("F16", merges_as_pairs=False)),
    Case("llama-bf16-rope-parameters", replace(LLAMA, theta=500000.0, scaling=LLAMA3_ROPE), "llama-bpe",
         GgufForm("BF16", files=2), HfForm("BF16", rope_parameters=True, shards=2)),
    Case("mistral-bf16-window", replace(MISTRAL, layers=3), "llama", GgufForm("BF16"), HfForm("BF16")),
    Case("mistral-f16-no-window", replace(MISTRAL, window=0), "gpt-2", GgufForm("F16"), HfForm("F16")),
    Case("qwen2-f16-yarn", replace(QWEN2, scaling=YARN), "qwen2", GgufForm("F16"),
         HfForm("F16", vectors="F32")),
    Case("qwen2-bf16-tied", replace(QWEN2, tied=True, kv_heads=1), "qwen2", GgufForm("BF16"), HfForm("BF16")),
    Case("qwen2-f32-rope-parameters", replace(QWEN2, scaling=YARN), "qwen2", None,
         HfForm("F32", rope_parameters=True)),
    Case("qwen3-bf16", QWEN3, "qwen2", GgufForm("BF16"), HfForm("BF16")),
    Case("qwen3-f16-tied-yarn", replace(QWEN3, tied=True, heads=2, kv_heads=1, scaling=YARN), "qwen2",
         GgufForm("F16"), HfForm("F16", merges_as_pairs=False)),
    Case("gemma3-bf16", GEMMA3, "gemma", GgufForm("BF16"), HfForm("BF16")),
    Case("gemma3-f32-unscaled", replace(GEMMA3, layers=12, scaling=None), "gemma",
         GgufForm("F32", windows_spelled_out=True), HfForm("F32", merges_as_pairs=False)),
    Case("gemma3-bf16-rope-parameters", replace(GEMMA3, attention_scalar=42), "gemma", None,
         HfForm("BF16", rope_parameters=True)),
    Case("gemma3-f16-multimodal", replace(GEMMA3, layers=6), "gemma", GgufForm("F16"),
         HfForm("F16", multimodal=True)),
    *(Case(f"llama-{name.lower()}", LLAMA, "gpt-2", GgufForm(name))
      for name in FORMATS if name not in ("F32", "F16", "BF16")),
    *(Case(f"llama-scales-{naming}", LLAMA, "smollm", None, HfForm("BF16", scales=naming))
      for naming in ("attention", "projection", "projection-output", "shared")),
]
