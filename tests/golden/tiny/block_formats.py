"""Weight formats: from floats to the bytes in a file and, written apart from it, from bytes to float64.

Both work on all blocks at once: `blocks` is an array [blocks][elements of a block] on the way in and
[blocks][bytes of a block] on the way back. The quantizers are plain, not good: one scale from the largest
value, everything rounded. They only have to use every bit of a format. The decoders ask for each element y
of a block where its bits lie; the encoders lay bits out in the order of the bytes.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Format:
    ggml_type: int
    elements: int  # of a block
    bytes: int
    file_type: int  # general.file_type of a file that is mostly this


FORMATS = {
    "F32": Format(0, 1, 4, 0),
    "F16": Format(1, 1, 2, 1),
    "BF16": Format(30, 1, 2, 32),
    "Q4_0": Format(2, 32, 18, 2),
    "Q4_1": Format(3, 32, 20, 3),
    "Q5_0": Format(6, 32, 22, 8),
    "Q5_1": Format(7, 32, 24, 9),
    "Q8_0": Format(8, 32, 34, 7),
    "IQ4_NL": Format(20, 32, 18, 25),
    "Q2_K": Format(10, 256, 84, 10),
    "Q3_K": Format(11, 256, 110, 12),
    "Q4_K": Format(12, 256, 144, 15),
    "Q5_K": Format(13, 256, 176, 17),
    "Q6_K": Format(14, 256, 210, 18),
}

IQ4_NL_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])


@dataclass(frozen=True)
class Encoded:
    """A tensor as a file holds it; shape as in PyTorch, the last dimension contiguous."""

    format: str
    shape: tuple
    data: bytes

    def decode(self):
        form = FORMATS[self.format]
        blocks = np.frombuffer(self.data, np.uint8).reshape(-1, form.bytes)
        return DECODERS[self.format](blocks).astype(np.float64).reshape(self.shape)


def encode(values, name):
    form = FORMATS[name]
    shape = np.shape(values)
    if shape and shape[-1] % form.elements:
        raise ValueError(f"{name} has blocks of {form.elements}; a row of {shape[-1]} does not fit")
    blocks = np.asarray(values, np.float32).reshape(-1, form.elements)
    data = ENCODERS[name](blocks)
    return Encoded(name, shape, np.ascontiguousarray(data).tobytes())


# ------------------------------------------------------------------------------------------------- to bytes


def half_bytes(values):
    return np.asarray(values, "<f2").reshape(-1, 1).view(np.uint8)


def rounded_half(values):
    """What a block's scale is once stored: codes are chosen for that."""
    return np.asarray(values, "<f2").astype(np.float64)


def codes(values, scale, low, high):
    """round(values / scale) in low..high; 0 where the scale is 0."""
    safe = np.where(scale == 0, 1, scale)
    return np.clip(np.where(scale == 0, 0, np.rint(values / safe)), low, high).astype(np.int64)


def signed_peak(blocks):
    """The element farthest from 0, with its sign."""
    at = np.abs(blocks).argmax(axis=-1)
    return np.take_along_axis(blocks, at[..., None], axis=-1)[..., 0].astype(np.float64)


def to_bytes(values):
    return np.asarray(values).astype(np.uint8)


def encode_f32(blocks):
    return blocks.astype("<f4")


def encode_f16(blocks):
    return blocks.astype("<f2")


def encode_bf16(blocks):
    bits = blocks.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")  # to nearest, ties to even


def pack_nibbles(q):
    """32 codes below 16: element j in the low half of byte j, element j + 16 in the high one."""
    return to_bytes(q[:, :16] | q[:, 16:] << 4)


def pack_fifth_bits(q):
    return (q >> 4 << np.arange(32)).sum(axis=1).astype("<u4").reshape(-1, 1).view(np.uint8)


def symmetric_32(blocks, bits):
    """Scale, and codes 0 .. 2^bits - 1 that stand for code - 2^(bits-1)."""
    middle = 1 << (bits - 1)
    scale = rounded_half(signed_peak(blocks) / -middle)
    return scale, codes(blocks, scale[:, None], -middle, middle - 1) + middle


def affine_32(blocks, bits):
    least = rounded_half(blocks.min(axis=1))
    scale = rounded_half((blocks.max(axis=1) - least) / (2**bits - 1))
    return scale, least, codes(blocks - least[:, None], scale[:, None], 0, 2**bits - 1)


def encode_q4_0(blocks):
    scale, q = symmetric_32(blocks, 4)
    return np.hstack([half_bytes(scale), pack_nibbles(q)])


def encode_q4_1(blocks):
    scale, least, q = affine_32(blocks, 4)
    return np.hstack([half_bytes(scale), half_bytes(least), pack_nibbles(q)])


def encode_q5_0(blocks):
    scale, q = symmetric_32(blocks, 5)
    return np.hstack([half_bytes(scale), pack_fifth_bits(q), pack_nibbles(q & 15)])


def encode_q5_1(blocks):
    scale, least, q = affine_32(blocks, 5)
    return np.hstack([half_bytes(scale), half_bytes(least), pack_fifth_bits(q), pack_nibbles(q & 15)])


def encode_q8_0(blocks):
    scale = rounded_half(np.abs(blocks).max(axis=1) / 127)
    return np.hstack([half_bytes(scale), to_bytes(codes(blocks, scale[:, None], -128, 127))])


def encode_iq4_nl(blocks):
    scale = rounded_half(signed_peak(blocks) / IQ4_NL_VALUES[0])
    candidates = scale[:, None, None] * IQ4_NL_VALUES
    q = np.abs(blocks[:, :, None] - candidates).argmin(axis=2)
    return np.hstack([half_bytes(scale), pack_nibbles(q)])


def affine_super(blocks, group, bits, scale_bits):
    """Scales and minima of groups, both in units of their own half: d, dmin, scale codes, minimum codes, q."""
    groups = blocks.reshape(len(blocks), -1, group).astype(np.float64)
    top = 2**scale_bits - 1
    minimum = np.maximum(-groups.min(axis=2), 0)
    scale = (groups.max(axis=2) + minimum) / (2**bits - 1)
    d = rounded_half(scale.max(axis=1) / top)[:, None]
    dmin = rounded_half(minimum.max(axis=1) / top)[:, None]
    scale_codes, minimum_codes = codes(scale, d, 0, top), codes(minimum, dmin, 0, top)
    offset = (dmin * minimum_codes)[:, :, None]
    q = codes(groups + offset, (d * scale_codes)[:, :, None], 0, 2**bits - 1)
    return d, dmin, scale_codes, minimum_codes, q.reshape(len(blocks), 256)


def symmetric_super(blocks, bits, scale_bits):
    """Groups of 16 with signed scale codes: d, scale codes, q."""
    groups = blocks.reshape(len(blocks), 16, 16)
    middle, scale_middle = 1 << (bits - 1), 1 << (scale_bits - 1)
    scale = signed_peak(groups) / -middle
    d = rounded_half(signed_peak(scale) / -scale_middle)[:, None]
    scale_codes = codes(scale, d, -scale_middle, scale_middle - 1)
    q = codes(groups, (d * scale_codes)[:, :, None], -middle, middle - 1)
    return d, scale_codes, q.reshape(len(blocks), 256)


def pack_two_bits(q):
    """Per 128 elements 32 bytes: byte l holds elements l, l + 32, l + 64, l + 96, lowest bits first."""
    quarters = q.reshape(-1, 2, 4, 32)
    return to_bytes((quarters << np.array([0, 2, 4, 6])[:, None]).sum(axis=2).reshape(-1, 64))


def encode_q2_k(blocks):
    d, dmin, scales, minima, q = affine_super(blocks, group=16, bits=2, scale_bits=4)
    return np.hstack([to_bytes(scales | minima << 4), pack_two_bits(q), half_bytes(d), half_bytes(dmin)])


def encode_q3_k(blocks):
    d, scales, q = symmetric_super(blocks, bits=3, scale_bits=6)
    q, scales = q + 4, scales + 32
    high = ((q >> 2).reshape(-1, 8, 32) << np.arange(8)[:, None]).sum(axis=1)
    low_scales = scales[:, :8] & 15 | (scales[:, 8:] & 15) << 4
    high_scales = ((scales >> 4).reshape(-1, 4, 4) << np.array([0, 2, 4, 6])[:, None]).sum(axis=1)
    return np.hstack([to_bytes(high), pack_two_bits(q & 3), to_bytes(low_scales), to_bytes(high_scales),
                      half_bytes(d)])


def pack_k_scales(scales, minima):
    """8 + 8 codes of 6 bits in 12 bytes; the upper two bits of the second four lie above the first four."""
    return to_bytes(np.hstack([scales[:, :4] | scales[:, 4:] >> 4 << 6, minima[:, :4] | minima[:, 4:] >> 4 << 6,
                               scales[:, 4:] & 15 | (minima[:, 4:] & 15) << 4]))


def pack_k_nibbles(q):
    pairs = q.reshape(-1, 4, 2, 32)
    return to_bytes((pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128))


def encode_q4_k(blocks):
    d, dmin, scales, minima, q = affine_super(blocks, group=32, bits=4, scale_bits=6)
    return np.hstack([half_bytes(d), half_bytes(dmin), pack_k_scales(scales, minima), pack_k_nibbles(q)])


def encode_q5_k(blocks):
    d, dmin, scales, minima, q = affine_super(blocks, group=32, bits=5, scale_bits=6)
    high = ((q >> 4).reshape(-1, 8, 32) << np.arange(8)[:, None]).sum(axis=1)
    return np.hstack([half_bytes(d), half_bytes(dmin), pack_k_scales(scales, minima), to_bytes(high),
                      pack_k_nibbles(q & 15)])


def encode_q6_k(blocks):
    d, scales, q = symmetric_super(blocks, bits=6, scale_bits=8)
    quarters = (q + 32).reshape(-1, 2, 4, 32)
    low = quarters[:, :, :2] & 15 | (quarters[:, :, 2:] & 15) << 4
    high = (quarters >> 4 << np.array([0, 2, 4, 6])[:, None]).sum(axis=2)
    return np.hstack([to_bytes(low.reshape(-1, 128)), to_bytes(high.reshape(-1, 64)), to_bytes(scales),
                      half_bytes(d)])


ENCODERS = {name: globals()["encode_" + name.lower()] for name in FORMATS}

# ----------------------------------------------------------------------------------------------- from bytes

Y32, Y256 = np.arange(32), np.arange(256)


def half_at(blocks, offset):
    return np.ascontiguousarray(blocks[:, offset:offset + 2]).view("<f2").astype(np.float64)


def bits_at(blocks, offsets, shifts, count):
    """One unsigned code for each element: `count` bits of the byte at its offset, from its shift up."""
    return blocks[:, offsets].astype(np.int64) >> shifts & ((1 << count) - 1)


def nibbles_32(blocks, offset):
    return bits_at(blocks, offset + Y32 % 16, Y32 // 16 * 4, 4)


def fifth_bits_32(blocks, offset):
    return bits_at(blocks, offset + Y32 // 8, Y32 % 8, 1) << 4


def decode_f32(blocks):
    return blocks.view("<f4")


def decode_f16(blocks):
    return blocks.view("<f2")


def decode_bf16(blocks):
    return (blocks.view("<u2").astype("<u4") << 16).view("<f4")


def decode_q4_0(blocks):
    return half_at(blocks, 0) * (nibbles_32(blocks, 2) - 8)


def decode_q4_1(blocks):
    return half_at(blocks, 0) * nibbles_32(blocks, 4) + half_at(blocks, 2)


def decode_q5_0(blocks):
    return half_at(blocks, 0) * ((nibbles_32(blocks, 6) | fifth_bits_32(blocks, 2)) - 16)


def decode_q5_1(blocks):
    return half_at(blocks, 0) * (nibbles_32(blocks, 8) | fifth_bits_32(blocks, 4)) + half_at(blocks, 2)


def decode_q8_0(blocks):
    return half_at(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8)


def decode_iq4_nl(blocks):
    return half_at(blocks, 0) * IQ4_NL_VALUES[nibbles_32(blocks, 2)]


def two_bits_256(blocks, offset):
    return bits_at(blocks, offset + Y256 // 128 * 32 + Y256 % 32, Y256 % 128 // 32 * 2, 2)


def decode_q2_k(blocks):
    group = Y256 // 16
    scale = half_at(blocks, 80) * bits_at(blocks, group, 0, 4)
    minimum = half_at(blocks, 82) * bits_at(blocks, group, 4, 4)
    return scale * two_bits_256(blocks, 16) - minimum


def decode_q3_k(blocks):
    group = Y256 // 16
    scale_low = bits_at(blocks, 96 + group % 8, group // 8 * 4, 4)
    scale_high = bits_at(blocks, 104 + group % 4, group // 4 * 2, 2)
    q = two_bits_256(blocks, 32) - 4 * (1 - bits_at(blocks, Y256 % 32, Y256 // 32, 1))
    return half_at(blocks, 108) * ((scale_low | scale_high << 4) - 32) * q


def k_scale(blocks, of_minimum):
    """The 6-bit scale or minimum of each element's group of 32, from the 12 bytes at 4."""
    group, part = Y256 // 32, 4 if of_minimum else 0
    first = bits_at(blocks, 4 + part + group % 4, 0, 6)
    second = bits_at(blocks, 12 + group % 4, part, 4) | bits_at(blocks, 4 + part + group % 4, 6, 2) << 4
    return np.where(group < 4, first, second)


def k_nibbles(blocks, offset):
    return bits_at(blocks, offset + Y256 // 64 * 32 + Y256 % 32, Y256 % 64 // 32 * 4, 4)


def decode_q4_k(blocks):
    return (half_at(blocks, 0) * k_scale(blocks, False) * k_nibbles(blocks, 16)
            - half_at(blocks, 2) * k_scale(blocks, True))


def decode_q5_k(blocks):
    q = k_nibbles(blocks, 48) | bits_at(blocks, 16 + Y256 % 32, Y256 // 32, 1) << 4
    return half_at(blocks, 0) * k_scale(blocks, False) * q - half_at(blocks, 2) * k_scale(blocks, True)


def decode_q6_k(blocks):
    half, quarter, l = Y256 // 128, Y256 % 128 // 32, Y256 % 32
    low = bits_at(blocks, half * 64 + quarter % 2 * 32 + l, quarter // 2 * 4, 4)
    high = bits_at(blocks, 128 + half * 32 + l, quarter * 2, 2)
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.int64)[:, Y256 // 16]
    return half_at(blocks, 208) * scales * ((low | high << 4) - 32)


DECODERS = {name: globals()["decode_" + name.lower()] for name in FORMATS}
