"""The forward pass in float64, every token at once and nothing cached: what kveval must come close to."""

import numpy as np

YARN_FAST, YARN_SLOW = 32, 1  # turns within the original context: above, a pair keeps its speed; below, it slows


def rms_norm(x, weight, epsilon):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def llama3_divisors(frequencies, scaling):
    """Long waves are stretched by the factor, short ones not, those between in part."""
    wavelengths = 2 * np.pi / frequencies
    ratio = scaling.original_context / wavelengths
    kept = np.clip((ratio - scaling.low_frequency) / (scaling.high_frequency - scaling.low_frequency), 0, 1)
    return 1 / ((1 - kept) / scaling.factor + kept)


def yarn_divisors(theta, head_dim, scaling):
    def pair_that_turns(times):
        return head_dim * np.log(scaling.original_context / (times * 2 * np.pi)) / (2 * np.log(theta))

    low = max(np.floor(pair_that_turns(YARN_FAST)), 0)
    high = min(np.ceil(pair_that_turns(YARN_SLOW)), head_dim - 1)
    slowed = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return 1 / (slowed / scaling.factor + (1 - slowed))


def rope_of(config, layer, divisors=None):
    """Radians a token for each pair, and what the rotated vectors are multiplied by."""
    local = config.window_of(layer) > 0 and config.local_theta > 0
    theta = config.local_theta if local else config.theta
    frequencies = theta ** (-2.0 * np.arange(config.head_dim // 2) / config.head_dim)
    if divisors is not None:  # as GGUF files carry Llama 3's
        return frequencies / divisors, 1.0
    scaling = None if local else config.scaling
    if scaling is None:
        return frequencies, 1.0
    if scaling.kind == "linear":
        return frequencies / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return frequencies / llama3_divisors(frequencies, scaling), 1.0
    assert scaling.kind == "yarn"
    return frequencies / yarn_divisors(theta, config.head_dim, scaling), 0.1 * np.log(scaling.factor) + 1


def rotate(x, frequencies, magnitude, interleaved):
    """x: [tokens][heads][head_dim]."""
    angles = np.arange(len(x))[:, None, None] * frequencies
    cos, sin = np.cos(angles) * magnitude, np.sin(angles) * magnitude
    half = x.shape[-1] // 2
    first, second = (slice(0, None, 2), slice(1, None, 2)) if interleaved else (slice(0, half), slice(half, None))
    a, b = x[..., first], x[..., second]
    out = np.empty_like(x)
    out[..., first], out[..., second] = a * cos - b * sin, b * cos + a * sin
    return out


def attend(q, k, v, window, scalar):
    """q: [tokens][heads][head_dim], k and v with kv_heads; -> [tokens][heads * head_dim]."""
    tokens, heads, _ = q.shape
    shared = heads // k.shape[1]  # query heads for each KV head
    k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(scalar)
    back = np.arange(tokens)[:, None] - np.arange(tokens)  # how far key j lies behind query i
    visible = (back >= 0) & (back < window if window else True)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, v).reshape(tokens, -1)


def attention(config, weights, layer, x, interleaved):
    def project(part, heads):
        y = x @ weights[f"{layer}.{part}"].T
        if config.qkv_bias:
            y = y + weights[f"{layer}.{part}_bias"]
        return y.reshape(len(x), heads, config.head_dim)

    q, k = project("q", config.heads), project("k", config.kv_heads)
    v = project("v", config.kv_heads)
    if config.qk_norm:
        q = rms_norm(q, weights[f"{layer}.q_norm"], config.epsilon)
        k = rms_norm(k, weights[f"{layer}.k_norm"], config.epsilon)
    frequencies, magnitude = rope_of(config, layer, weights.get("rope_divisors"))
    q, k = (rotate(part, frequencies, magnitude, interleaved) for part in (q, k))
    scalar = config.attention_scalar or config.head_dim
    return attend(q, k, v, config.window_of(layer), scalar) @ weights[f"{layer}.o"].T


def feed_forward(config, weights, layer, x):
    gate, up, down = (weights[f"{layer}.{part}"] for part in ("gate", "up", "down"))
    activation = gelu_tanh if config.gelu else silu
    return (activation(x @ gate.T) * (x @ up.T)) @ down.T


def forward(config, weights, ids, interleaved=False):
    """Logits [tokens][vocabulary]. `interleaved`: rows of Q and K are such that RoPE pairs 2i and 2i + 1."""
    def norm(x, name):
        return rms_norm(x, weights[name], config.epsilon)

    x = weights["embedding"][ids]
    if config.embedding_scale:
        x = x * np.sqrt(config.width)
    for layer in range(config.layers):
        y = attention(config, weights, layer, norm(x, f"{layer}.attention_norm"), interleaved)
        x = x + (norm(y, f"{layer}.post_attention_norm") if config.post_norm else y)
        y = feed_forward(config, weights, layer, norm(x, f"{layer}.ff_norm"))
        x = x + (norm(y, f"{layer}.post_ff_norm") if config.post_norm else y)
    head = weights["embedding"] if config.tied else weights["head"]
    return norm(x, "output_norm") @ head.T
