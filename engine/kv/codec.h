// The definition of each number format: one value in, one code out, and back. Everything faster
// (codec_kernels.h, the attention kernels) must give these bits.
//
// All encoders round to nearest, ties to even, and keep the sign of zero. They differ at the edges:
//
//          largest   smallest > 0   +-Inf becomes   NaN becomes   codes that decode to NaN / Inf
//   f32    3.4e38    2^-149         itself          itself        as IEEE
//   fp16   65504     2^-24          +-Inf           0x7E00        as IEEE
//   bf16   3.39e38   2^-133         +-Inf           0x7FC0        as IEEE
//   e4m3   448       2^-9           +-448           0x7F          0x7F, 0xFF / none
//   e5m2   57344     2^-16          +-57344         0x7F          0x7D-0x7F, 0xFD-0xFF / 0x7C, 0xFC
//   int8   127       1              +-127           0             none
//
// fp16 and bf16 overflow to infinity as hardware conversions do: a 16-bit cache that overflows in a server
// must overflow here. The 8-bit floats saturate, as CUDA's SATFINITE conversions that inference engines use
// do. Engines leave NaN in int8 undefined (a float-to-int conversion of NaN); 0 keeps it deterministic and it
// counts as flushed. -128 is never written: int8 is symmetric.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/profile.h"

#ifdef __CUDACC__
#define KVEVAL_HD __host__ __device__
#else
#define KVEVAL_HD
#endif

// Functions here are static: a *_simd.cpp that is compiled for AVX-512 must not lend its copy to other files.
namespace kveval::kv {

KVEVAL_HD static constexpr uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
KVEVAL_HD static constexpr float float_of(uint32_t bits) { return __builtin_bit_cast(float, bits); }

inline constexpr uint32_t kFloatSign = 0x80000000u;
inline constexpr uint32_t kFloatInfinity = 0x7F800000u;
inline constexpr uint32_t kFloatNan = 0x7FC00000u;

// value / 2^shift, to nearest, ties to even, for a float's significand (below 2^24) and shift >= 1.
KVEVAL_HD static constexpr uint32_t shift_to_even(uint32_t value, int shift) {
  if (shift >= 25) return 0;  // less than a half
  const uint32_t odd = (value >> shift) & 1u;
  return (value + (1u << (shift - 1)) - 1u + odd) >> shift;
}

// A finite float's magnitude (sign bit clear) in a format of kMantissa stored bits and exponent bias kBias,
// exponent and mantissa as one number, as if exponents had no upper end: the caller decides what overflow
// means.
template <int kMantissa, int kBias>
KVEVAL_HD static constexpr uint32_t round_magnitude(uint32_t magnitude) {
  constexpr int kDropped = 23 - kMantissa;
  const int exponent =
      int(magnitude >> 23);  // biased by 127; 0 for subnormal floats, whose exponent is that of 1
  if (exponent > 127 - kBias) {
    const uint32_t rebiased = magnitude - (uint32_t(127 - kBias) << 23);
    const uint32_t odd = (rebiased >> kDropped) & 1u;
    return (rebiased + (1u << (kDropped - 1)) - 1u + odd) >>
           kDropped;  // a carry moves into the exponent: right
  }
  const uint32_t significand = (magnitude & 0x7FFFFFu) | (exponent != 0 ? 0x800000u : 0u);
  const int effective = exponent != 0 ? exponent : 1;
  return shift_to_even(significand, kDropped + (128 - kBias) - effective);
}

// The float that exponent and mantissa `code` stand for, codes of infinity and NaN excepted. Exact.
template <int kMantissa, int kBias>
KVEVAL_HD static constexpr float magnitude_of(uint32_t code) {
  constexpr float kSubnormalStep = float_of(uint32_t(128 - kBias - kMantissa) << 23);
  if ((code >> kMantissa) == 0) return float(code) * kSubnormalStep;
  return float_of((code << (23 - kMantissa)) + (uint32_t(127 - kBias) << 23));
}

KVEVAL_HD static constexpr float with_sign(float magnitude, bool negative) {
  return float_of(bits_of(magnitude) | (negative ? kFloatSign : 0u));
}

KVEVAL_HD static constexpr uint16_t encode_fp16(float x) {
  const uint32_t sign = bits_of(x) & kFloatSign, magnitude = bits_of(x) ^ sign;
  if (magnitude > kFloatInfinity) return 0x7E00;
  const uint32_t code = magnitude == kFloatInfinity ? 0x7C00u : round_magnitude<10, 15>(magnitude);
  return uint16_t(sign >> 16 | (code < 0x7C00u ? code : 0x7C00u));
}

KVEVAL_HD static constexpr float decode_fp16(uint16_t code) {
  const bool negative = (code & 0x8000u) != 0;
  const uint32_t magnitude = code & 0x7FFFu;
  if (magnitude >= 0x7C00u) {  // NaN keeps its payload and turns quiet, as vcvtph2ps has it
    const uint32_t payload = (magnitude & 0x3FFu) << 13;
    return with_sign(float_of(kFloatInfinity | payload | (payload != 0 ? 0x400000u : 0u)), negative);
  }
  return with_sign(magnitude_of<10, 15>(magnitude), negative);
}

KVEVAL_HD static constexpr uint16_t encode_bf16(float x) {
  const uint32_t sign = bits_of(x) & kFloatSign, magnitude = bits_of(x) ^ sign;
  if (magnitude > kFloatInfinity) return 0x7FC0;
  return uint16_t((sign >> 16) | ((magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16));
}

KVEVAL_HD static constexpr float decode_bf16(uint16_t code) { return float_of(uint32_t(code) << 16); }

KVEVAL_HD static constexpr uint8_t encode_e4m3(float x) {
  const uint32_t sign = bits_of(x) & kFloatSign, magnitude = bits_of(x) ^ sign;
  if (magnitude > kFloatInfinity) return 0x7F;
  const uint32_t code = magnitude == kFloatInfinity ? 0x7Eu : round_magnitude<3, 7>(magnitude);
  return uint8_t(sign >> 24 | (code < 0x7Eu ? code : 0x7Eu));
}

KVEVAL_HD static constexpr float decode_e4m3(uint8_t code) {
  const bool negative = (code & 0x80u) != 0;
  const uint32_t magnitude = code & 0x7Fu;
  return with_sign(magnitude == 0x7Fu ? float_of(kFloatNan) : magnitude_of<3, 7>(magnitude), negative);
}

KVEVAL_HD static constexpr uint8_t encode_e5m2(float x) {
  const uint32_t sign = bits_of(x) & kFloatSign, magnitude = bits_of(x) ^ sign;
  if (magnitude > kFloatInfinity) return 0x7F;
  const uint32_t code = magnitude == kFloatInfinity ? 0x7Bu : round_magnitude<2, 15>(magnitude);
  return uint8_t(sign >> 24 | (code < 0x7Bu ? code : 0x7Bu));
}

// e5m2 is the upper byte of a half.
KVEVAL_HD static constexpr float decode_e5m2(uint8_t code) { return decode_fp16(uint16_t(code << 8)); }

KVEVAL_HD static constexpr uint8_t encode_int8(float x) {
  const uint32_t sign = bits_of(x) & kFloatSign, magnitude = bits_of(x) ^ sign;
  if (magnitude > kFloatInfinity) return 0;
  int value = 127;
  if (magnitude < bits_of(127.0f)) {
    const int exponent = int(magnitude >> 23);
    const uint32_t significand = (magnitude & 0x7FFFFFu) | (exponent != 0 ? 0x800000u : 0u);
    value = int(shift_to_even(significand, 150 - exponent));  // 150 = 127 + 23: the significand in units of 1
  }
  return uint8_t(sign != 0 ? -value : value);
}

KVEVAL_HD static constexpr float decode_int8(uint8_t code) { return float(int8_t(code)); }

// The largest finite value: what a dynamic scale maps a row's absolute maximum to.
KVEVAL_HD static constexpr float largest(Format format) {
  switch (format) {
    case Format::f32: return float_of(0x7F7FFFFFu);
    case Format::fp16: return 65504.0f;
    case Format::bf16: return float_of(0x7F7F0000u);
    case Format::e4m3: return 448.0f;
    case Format::e5m2: return 57344.0f;
    case Format::int8: return 127.0f;
  }
  return 0.0f;
}

// The smallest magnitude that rounds beyond largest(): from here on a value is clipped. Below it, between
// largest() and here, largest() is what rounding gives without any saturation (for e4m3 up to and including
// the tie 464, because 448 is the even neighbour; elsewhere the tie already goes up).
KVEVAL_HD static constexpr float clips_from(Format format) {
  switch (format) {
    case Format::f32: return float_of(kFloatInfinity);
    case Format::fp16: return 65520.0f;
    case Format::bf16: return float_of(0x7F7F8000u);
    case Format::e4m3: return float_of(bits_of(464.0f) + 1u);
    case Format::e5m2: return 61440.0f;
    case Format::int8: return 127.5f;
  }
  return 0.0f;
}

// The symmetric scale that maps `absolute_max` to largest(). Never below the smallest normal float: a row of
// zeros is not divided by zero, and no row that fp16 could hold apart from zero is touched by it (engines use
// floors from 1e-6 down to this one).
KVEVAL_HD static constexpr float scale_for(Format format, float absolute_max) {
  const float scale = absolute_max / largest(format);
  return scale > float_of(0x00800000u) ? scale : float_of(0x00800000u);
}

// Bytes one code takes. Codes lie in memory with their low byte first.
KVEVAL_HD static constexpr size_t code_bytes(Format format) {
  switch (format) {
    case Format::f32: return 4;
    case Format::fp16:
    case Format::bf16: return 2;
    case Format::e4m3:
    case Format::e5m2:
    case Format::int8: return 1;
  }
  return 0;
}

KVEVAL_HD static constexpr void encode(Format format, float x, uint8_t* code) {
  uint32_t bits = 0;
  switch (format) {
    case Format::f32: bits = bits_of(x); break;
    case Format::fp16: bits = encode_fp16(x); break;
    case Format::bf16: bits = encode_bf16(x); break;
    case Format::e4m3: bits = encode_e4m3(x); break;
    case Format::e5m2: bits = encode_e5m2(x); break;
    case Format::int8: bits = encode_int8(x); break;
  }
  for (size_t i = 0; i < code_bytes(format); i++) code[i] = uint8_t(bits >> (8 * i));
}

KVEVAL_HD static constexpr float decode(Format format, const uint8_t* code) {
  uint32_t bits = 0;
  for (size_t i = 0; i < code_bytes(format); i++) bits |= uint32_t(code[i]) << (8 * i);
  switch (format) {
    case Format::f32: return float_of(bits);
    case Format::fp16: return decode_fp16(uint16_t(bits));
    case Format::bf16: return decode_bf16(uint16_t(bits));
    case Format::e4m3: return decode_e4m3(uint8_t(bits));
    case Format::e5m2: return decode_e5m2(uint8_t(bits));
    case Format::int8: return decode_int8(uint8_t(bits));
  }
  return 0.0f;
}

}  // namespace kveval::kv
