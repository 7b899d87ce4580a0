"""The script against itself: formats against a second formula, files against each other, features one by one."""

import dataclasses
import struct
import sys

import numpy as np

from tiny import gguf, huggingface
from tiny.block_formats import DECODERS, FORMATS, IQ4_NL_VALUES, encode
from tiny.forward import forward
from tiny.model import make_ids, make_weights

SAME = 1e-9  # logits of the same weights: float64's own noise
SAME_ROUNDED_DIVISORS = 1e-4  # GGUF has Llama 3's divisors in float32
MATTERS = 1e-2


class Failures:
    def __init__(self):
        self.count = 0

    def check(self, holds, what):
        if not holds:
            self.count += 1
            print(f"FAILED: {what}", file=sys.stderr)


# -------------------------------------------------------------------------------------------------- formats


def half(block, at):
    return struct.unpack_from("<e", block, at)[0]


def walk_32(name, block):
    """Blocks of 32, byte by byte."""
    d, out = half(block, 0), [0.0] * 32
    if name == "Q8_0":
        return [d * struct.unpack_from("<b", block, 2 + j)[0] for j in range(32)]
    has_offset, has_fifth = name.endswith("_1"), name.startswith("Q5")
    m = half(block, 2) if has_offset else 0.0
    at = 4 if has_offset else 2
    fifth = struct.unpack_from("<I", block, at)[0] if has_fifth else 0
    at += 4 if has_fifth else 0
    for j in range(16):
        low = block[at + j] & 15 | (fifth >> j & 1) << 4
        high = block[at + j] >> 4 | (fifth >> (j + 16) & 1) << 4
        for y, q in ((j, low), (j + 16, high)):
            if name == "IQ4_NL":
                out[y] = d * float(IQ4_NL_VALUES[q])
            else:
                out[y] = d * (q - (0 if has_offset else 16 if has_fifth else 8)) + m
    return out


def walk_q2_k(block):
    scales, q, d, dmin, out, group = block[:16], block[16:80], half(block, 80), half(block, 82), [], 0
    for part in (q[:32], q[32:]):
        for shift in (0, 2, 4, 6):
            for side in (part[:16], part[16:]):
                scale = scales[group]
                group += 1
                out += [d * (scale & 15) * (byte >> shift & 3) - dmin * (scale >> 4) for byte in side]
    return out


def walk_q3_k(block):
    mask, q, d = block[:32], block[32:96], half(block, 108)
    a0, a1, t = struct.unpack_from("<III", block, 96)
    words = [a0 & 0x0F0F0F0F | (t & 0x03030303) << 4, a1 & 0x0F0F0F0F | (t >> 2 & 0x03030303) << 4,
             a0 >> 4 & 0x0F0F0F0F | (t >> 4 & 0x03030303) << 4, a1 >> 4 & 0x0F0F0F0F | (t >> 6 & 0x03030303) << 4]
    scales, out, group, bit = struct.pack("<IIII", *words), [], 0, 1
    for part in (q[:32], q[32:]):
        for shift in (0, 2, 4, 6):
            for start in (0, 16):
                for l in range(start, start + 16):
                    value = (part[l] >> shift & 3) - (0 if mask[l] & bit else 4)
                    out.append(d * (scales[group] - 32) * value)
                group += 1
            bit <<= 1
    return out


def walk_k_scales(q):
    pairs = []
    for j in range(8):
        if j < 4:
            pairs.append((q[j] & 63, q[j + 4] & 63))
        else:
            pairs.append((q[j + 4] & 15 | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4))
    return pairs


def walk_q45_k(name, block):
    d, dmin, scales = half(block, 0), half(block, 2), walk_k_scales(block[4:16])
    fifth = block[16:48] if name == "Q5_K" else bytes(32)
    q, out, group, bit = block[48:] if name == "Q5_K" else block[16:], [], 0, 1
    for start in range(0, 128, 32):
        for shift in (0, 4):
            scale, minimum = scales[group]
            for l in range(32):
                code = (q[start + l] >> shift & 15) + (16 if fifth[l] & bit else 0)
                out.append(d * scale * code - dmin * minimum)
            group += 1
            bit <<= 1
    return out


def walk_q6_k(block):
    d, out = half(block, 208), [0.0] * 256
    for part in range(2):
        low, high, y = block[64 * part:], block[128 + 32 * part:], 128 * part
        scales = struct.unpack_from("<8b", block, 192 + 8 * part)
        for l in range(32):
            group = l // 16
            for step, nibble in enumerate((low[l] & 15, low[l + 32] & 15, low[l] >> 4, low[l + 32] >> 4)):
                code = (nibble | (high[l] >> 2 * step & 3) << 4) - 32
                out[y + 32 * step + l] = d * scales[group + 2 * step] * code
    return out


def walk(name, block):
    if FORMATS[name].elements == 32:
        return walk_32(name, block)
    if name in ("Q4_K", "Q5_K"):
        return walk_q45_k(name, block)
    return {"Q2_K": walk_q2_k, "Q3_K": walk_q3_k, "Q6_K": walk_q6_k}[name](block)


HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2),
          "Q6_K": (208,)}  # offsets; (0,) for the others


def check_format(name, random, failures):
    """Random bytes, so that every bit is there; only the halves must be numbers."""
    form = FORMATS[name]
    blocks = random.randint(0, 256, (40, form.bytes)).astype(np.uint8)
    for at in HALVES.get(name, (0,)):
        blocks[:, at:at + 2] = random.standard_normal((40, 1)).astype("<f2").view(np.uint8)
    decoded = DECODERS[name](blocks)
    walked = np.array([walk(name, block.tobytes()) for block in blocks])
    error = np.abs(decoded - walked).max()
    failures.check(error == 0, f"{name} decodes differently by two formulas, by {error}")


# What a plain quantizer may lose, as a share of the largest value in a block: half a step and a little.
WORST_LOSS = {"Q8_0": 0.005, "Q6_K": 0.04, "Q5_0": 0.07, "Q5_1": 0.05, "Q5_K": 0.06, "Q4_0": 0.14, "Q4_1": 0.08,
              "Q4_K": 0.1, "IQ4_NL": 0.13, "Q3_K": 0.27, "Q2_K": 0.4, "F16": 0.001, "BF16": 0.004, "F32": 0}


def check_quantizer(name, random, failures):
    values = random.standard_normal((16, 256)).astype(np.float32)
    error = np.abs(encode(values, name).decode() - values).max(axis=1)
    worst = (error / np.abs(values).max(axis=1)).max()
    failures.check(worst <= WORST_LOSS[name], f"{name} loses {worst:.3f} of the largest value")


# ------------------------------------------------------------------------------------------------- features


def without_features(config):
    """(what, configuration with that part missing)."""
    replace = dataclasses.replace
    if config.window:
        yield "the window", replace(config, window=0)
        yield "the window's size", replace(config, window=config.window + 1)
    if config.windows_alternate:
        yield "layers without a window", replace(config, windows_alternate=False)
    if config.local_theta:
        yield "the local theta", replace(config, local_theta=config.theta)
        if config.scaling:
            yield "scaling left out of local layers", replace(config, local_theta=0.0, theta=config.local_theta)
    if config.scaling:
        yield "RoPE scaling", replace(config, scaling=None)
        if config.scaling.kind != "linear":
            linear = replace(config.scaling, kind="linear")
            yield f"{config.scaling.kind} being no linear scaling", replace(config, scaling=linear)
    for flag in ("qkv_bias", "qk_norm", "post_norm", "embedding_scale", "gelu"):
        if getattr(config, flag):
            yield flag, replace(config, **{flag: False})
    if config.attention_scalar:
        yield "the attention scalar", replace(config, attention_scalar=0)
    yield "theta", replace(config, theta=config.theta * 10)
    yield "epsilon", replace(config, epsilon=config.epsilon * 1000)


def check_case(case, encode_case, logits_of_gguf, logits_of_hf, tokens, failures):
    ids = make_ids(case.config, case.seed, tokens)
    of_gguf, of_hf = encode_case(case)
    logits = logits_of_hf(case, of_hf, ids) if of_hf else logits_of_gguf(case, of_gguf, ids)
    spread = logits.std()
    failures.check(1 < spread < 6, f"{case.name}: logits spread over {spread:.2f} nats")
    if of_gguf and of_hf:
        difference = np.abs(logits - logits_of_gguf(case, of_gguf, ids)).max()
        limit = SAME_ROUNDED_DIVISORS if "rope_divisors" in of_gguf else SAME
        failures.check(difference <= limit, f"{case.name}: GGUF and Hugging Face differ by {difference}")
    if of_hf:
        _, weights = huggingface.decode_tensors(case.config, of_hf)
        halves = True
    else:
        _, weights = gguf.decode_tensors(case.config, of_gguf)
        halves = not gguf.is_interleaved(case.config)
    variants = [(what, forward(config, weights, ids, not halves))
                for what, config in without_features(case.config)]
    variants.append(("which rows RoPE pairs", forward(case.config, weights, ids, halves)))
    for what, other in variants:
        change = np.abs(other - logits).max()
        failures.check(change > MATTERS, f"{case.name}: {what} changes logits by {change:.2g} only")


def run(cases, encode_case, logits_of_gguf, logits_of_hf, tokens):
    failures = Failures()
    random = np.random.RandomState(1)
    for name, form in FORMATS.items():
        if form.elements > 1:
            check_format(name, random, failures)
        check_quantizer(name, random, failures)
    for case in cases:
        check_case(case, encode_case, logits_of_gguf, logits_of_hf, tokens, failures)
    print(f"{len(FORMATS)} formats and {len(cases)} cases checked, {failures.count} failures")
    return 1 if failures.count else 0
