// How packed weights lie in memory, still quantized: what pack() writes, scalar.cpp defines and
// packed_weights.h reads.
//
// Rows go in blocks of 16, one vector lane each. A row block is a sequence of blocks of `block` k; where the
// codes are integers such a block is
//
//   d   [16] half
//   m   [16] half                     with offset
//   s   [block / group][16] int8      with factors
//   o   [block / group][16] int8      with factors and offset
//   codes of one group after another, from a 64-byte line on where there are factors
//
// and row r's weight at k, in group g = k % block / group, is one of
//
//   scale * code, fma(scale, code, offset)     scale = d[r] * s[g][r], offset = m[r] * o[g][r] (exact)
//
// without factors s and o are 1. Codes of 8 bits and floats stand as [k][16]. Smaller ones are cut into
// planes of 4 bits or fewer, the low one first (5 = 4 + 1, 6 = 4 + 2). A plane is a sequence of 64-byte
// lines: lane r of 16 dwords holds 32 / bits consecutive k of row r, the i-th at bit 8 (i % 4) +
// bits (i / 4). Thus one shift brings any of them to the bottom of its dword, and four neighbours to the
// bottom of its bytes. The high plane of a group is one line.
//
//   format         block  group  bits  bytes for 16 rows   in the file
//   q4_0, iq4_nl      32     32     4         288              288
//   q4_1              32     32     4         320              320
//   q5_0              32     32   4+1         352              352
//   q5_1              32     32   4+1         384              384
//   q8_0              32     32     8         544              544
//   q2_k             256     16     2        1600             1344    1.19 x
//   q3_k             256     16     4        2368             1760    1.35 x: a nibble for three bits
//   q4_k             256     32     4        2368             2304    1.03 x
//   q5_k             256     32   4+1        2880             2816    1.02 x
//   q6_k             256     16   4+2        3392             3360    1.01 x
//   f16, bf16          1      1    16          32               32
//   f32                1      1    32          64               64
//
// Every SIMD level includes this: nothing but constants and functions of internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/model/tensor_type.h"

namespace kveval::cpu {

// What the bits of a code mean; int_signed is two's complement.
enum class Codes : uint8_t { int_unsigned, int_signed, iq4_nl, f16, bf16, f32 };

struct WeightLayout {
  Codes codes;
  int bits;
  int block = 1, group = 1;
  bool factors = false, offset = false;
};

static constexpr WeightLayout layout_of(TensorType type) {
  switch (type) {
    case TensorType::f32: return {Codes::f32, 32};
    case TensorType::f16: return {Codes::f16, 16};
    case TensorType::bf16: return {Codes::bf16, 16};
    case TensorType::q4_0: return {Codes::int_signed, 4, 32, 32};
    case TensorType::q4_1: return {Codes::int_unsigned, 4, 32, 32, false, true};
    case TensorType::q5_0: return {Codes::int_signed, 5, 32, 32};
    case TensorType::q5_1: return {Codes::int_unsigned, 5, 32, 32, false, true};
    case TensorType::q8_0: return {Codes::int_signed, 8, 32, 32};
    case TensorType::iq4_nl: return {Codes::iq4_nl, 4, 32, 32};
    case TensorType::q2_k: return {Codes::int_unsigned, 2, 256, 16, true, true};
    case TensorType::q3_k: return {Codes::int_signed, 4, 256, 16, true, false};
    case TensorType::q4_k: return {Codes::int_unsigned, 4, 256, 32, true, true};
    case TensorType::q5_k: return {Codes::int_unsigned, 5, 256, 32, true, true};
    case TensorType::q6_k: return {Codes::int_signed, 6, 256, 16, true, false};
  }
  return {};
}

static constexpr bool is_float(const WeightLayout& layout) { return layout.codes >= Codes::f16; }

// Bits of a code in the low plane and in the high one, 0: there is none.
static constexpr int low_bits(const WeightLayout& layout) {
  return layout.bits < 8 && layout.bits > 4 ? 4 : layout.bits;
}
static constexpr int high_bits(const WeightLayout& layout) { return layout.bits - low_bits(layout); }

// Where code i of a dword stands in a plane of so many bits.
static constexpr int code_shift(int bits, int i) { return 8 * (i % 4) + bits * (i / 4); }

static constexpr int code_value(const WeightLayout& layout, int bits) {
  if (layout.codes == Codes::iq4_nl) return kIq4NlValues[bits];
  return layout.codes == Codes::int_signed && bits >= 1 << (layout.bits - 1) ? bits - (1 << layout.bits)
                                                                             : bits;
}

static constexpr int groups_of(const WeightLayout& layout) { return layout.block / layout.group; }

// Bytes from a block's begin.
static constexpr size_t factors_at(const WeightLayout& layout) { return layout.offset ? 64 : 32; }
static constexpr size_t offset_factors_at(const WeightLayout& layout) {
  return factors_at(layout) + size_t(groups_of(layout)) * 16;
}
static constexpr size_t codes_at(const WeightLayout& layout) {
  if (is_float(layout)) return 0;
  if (!layout.factors) return factors_at(layout);
  const size_t header = offset_factors_at(layout) + (layout.offset ? size_t(groups_of(layout)) * 16 : 0);
  return (header + 63) / 64 * 64;
}

// Bytes of a group's codes, of its low plane, of a block, of 16 rows.
static constexpr size_t group_bytes(const WeightLayout& layout) {
  return 2 * size_t(layout.bits) * size_t(layout.group);
}
static constexpr size_t low_plane_bytes(const WeightLayout& layout) {
  return 2 * size_t(low_bits(layout)) * size_t(layout.group);
}
static constexpr size_t block_bytes(const WeightLayout& layout) {
  return codes_at(layout) + size_t(groups_of(layout)) * group_bytes(layout);
}
static constexpr size_t row_block_bytes(const WeightLayout& layout, int cols) {
  return size_t(cols) / size_t(layout.block) * block_bytes(layout);
}

}  // namespace kveval::cpu
