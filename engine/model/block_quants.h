// Weight formats, one row at a time: the slow, obvious definition that packed kernels must agree with, bit
// for bit.
//
// Every quantized block comes apart into integer codes in element order, up to two halves, d and m, and an
// integer factor of each for every group of consecutive elements: scale = d * factor, offset = m * factor.
// A weight then has one of two values:
//   without offset   scale * code             (one float32 product)
//   with offset      fma(scale, code, offset) (one rounding)
// Halves have 11 significant bits, their factors at most 7 and codes at most 8, so scale, offset and
// scale * code are exact in float32: the value is the exact one, rounded once where there is an offset.
//
//   format   bytes   group  scale         code                 offset
//   Q4_0    32/18     32    d             -8..7
//   Q4_1    32/20     32    d             0..15                m
//   Q5_0    32/22     32    d             -16..15
//   Q5_1    32/24     32    d             0..31                m
//   Q8_0    32/34     32    d             -128..127
//   IQ4_NL  32/18     32    d             one of 16, -127..113
//   Q2_K   256/84     16    d * s         0..3                 -dmin * m
//   Q3_K   256/110    16    d * (s - 32)  -4..3
//   Q4_K   256/144    32    d * s         0..15                -dmin * m
//   Q5_K   256/176    32    d * s         0..31                -dmin * m
//   Q6_K   256/210    16    d * s         -32..31
//
// F32, F16 and BF16 have the one value that they are.
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "engine/model/tensor.h"

namespace kveval {

struct UnpackedBlock {
  std::array<int8_t, 256> codes;         // the first block_elements count
  uint16_t d, m;                         // halves; of K formats m is -dmin; without offset m is unset
  std::array<int8_t, 16> factor;         // of d, one a group; 1 where a block is one group
  std::array<int8_t, 16> offset_factor;  // of m
};

// Where a block of a quantized type keeps its halves d and m (K formats: dmin), in bytes from its begin.
struct HalfPlaces {
  static constexpr int kNone = -1;
  int d, m;  // m: kNone without offset
};
HalfPlaces half_places(TensorType type);

// `block` is block_bytes of a quantized type (not F32, F16, BF16), at any address.
void unpack_block(TensorType type, const std::byte* block, UnpackedBlock& out);

float scale_of(const UnpackedBlock& block, int group);
float offset_of(const UnpackedBlock& block, int group);
static inline float weight_without_offset(float scale, int code) { return scale * float(code); }
static inline float weight_with_offset(float scale, int code, float offset) {
  return std::fmaf(scale, float(code), offset);
}

// `count` elements, a multiple of the type's block_elements, from consecutive blocks.
void dequantize(TensorType type, const std::byte* blocks, size_t count, float* out);

}  // namespace kveval
