// How packed weights lie in memory, still quantized: what pack() writes, scalar.cpp defines and
// packed_weights.h reads.
//
// Rows go in blocks of 16, one vector lane each. A row block is a sequence of blocks of `block` k:
//
//   d   [16] half                     present unless the codes are floats
//   m   [16] half                     with offset
//   s   [block / group][16] int8      with factors
//   o   [block / group][16] int8      with factors and offset
//   codes, on a 64-byte line where there are factors
//
// and row r's weight at k, in group g = k % block / group, is one of
//
//   scale * code, fma(scale, code, offset)     scale = d[r] * s[g][r], offset = m[r] * o[g][r] (exact)
//
// without factors s and o are 1. Codes of 8 bits and more stand as [k][16]. Smaller ones share dwords: lane r
// of 16 dwords holds 32 / bits consecutive k of row r, the i-th at bit 8 (i % 4) + bits (i / 4), so that one
// shift brings any of them to the bottom of all 16 lanes, and four neighbours fill the four bytes.
//
//   format         block  group  bytes for 16 rows   file's   packed is
//   q4_0, iq4_nl      32     32       288              288      1.00 x
//   q4_1              32     32       320              320      1.00
//   q8_0              32     32       544              544      1.00  (q5_0 becomes q8_0: 352, 1.55)
//   q5_1              32     32       576              384      1.50
//   q2_k             256     16      1600             1344      1.19
//   q3_k             256     16      2368             1760      1.35
//   q4_k             256     32      2368             2304      1.03
//   q5_k             256     32      4416             2816      1.57
//   q6_k             256     16      4416             3360      1.31
//   f16, bf16          1      1        32               32      1.00
//   f32                1      1        64               64      1.00
//
// Every SIMD level includes this: nothing but constants and functions of internal linkage.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kveval::cpu {

enum class WeightFormat : uint8_t {
  f32,
  f16,
  bf16,
  q4_0,
  q4_1,
  q5_1,
  q8_0,
  iq4_nl,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
};

enum class CodeKind : uint8_t { two_bits, four_bits, int8, f16, bf16, f32 };

struct WeightLayout {
  CodeKind codes;
  int block = 1, group = 1;
  bool factors = false, offset = false;
  int8_t values[16] = {};  // what codes of two and four bits stand for
};

static constexpr WeightLayout layout_of(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32: return {CodeKind::f32};
    case WeightFormat::f16: return {CodeKind::f16};
    case WeightFormat::bf16: return {CodeKind::bf16};
    case WeightFormat::q4_0:
      return {CodeKind::four_bits,
              32,
              32,
              false,
              false,
              {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7}};
    case WeightFormat::q4_1:
      return {
          CodeKind::four_bits, 32, 32, false, true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
    case WeightFormat::q5_1: return {CodeKind::int8, 32, 32, false, true};
    case WeightFormat::q8_0: return {CodeKind::int8, 32, 32};
    case WeightFormat::iq4_nl:
      return {CodeKind::four_bits,
              32,
              32,
              false,
              false,
              {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};
    case WeightFormat::q2_k:  // the two bits above a code are its neighbour's
      return {CodeKind::two_bits, 256, 16, true, true, {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}};
    case WeightFormat::q3_k:  // codes have three bits
      return {CodeKind::four_bits,
              256,
              16,
              true,
              false,
              {-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3}};
    case WeightFormat::q4_k:
      return {
          CodeKind::four_bits, 256, 32, true, true, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
    case WeightFormat::q5_k: return {CodeKind::int8, 256, 32, true, true};
    case WeightFormat::q6_k: return {CodeKind::int8, 256, 16, true, false};
  }
  return {};
}

static constexpr bool is_float(const WeightLayout& layout) { return layout.codes >= CodeKind::f16; }

static constexpr int code_bits(const WeightLayout& layout) {
  switch (layout.codes) {
    case CodeKind::two_bits: return 2;
    case CodeKind::four_bits: return 4;
    case CodeKind::int8: return 8;
    case CodeKind::f16:
    case CodeKind::bf16: return 16;
    case CodeKind::f32: return 32;
  }
  return 0;
}

// Where code i of a dword stands.
static constexpr int code_shift(int bits, int i) { return 8 * (i % 4) + bits * (i / 4); }

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
static constexpr size_t code_bytes(const WeightLayout& layout) {  // of one k: 16 codes
  return 2 * size_t(code_bits(layout));
}
static constexpr size_t block_bytes(const WeightLayout& layout) {
  return codes_at(layout) + size_t(layout.block) * code_bytes(layout);
}
static constexpr size_t row_block_bytes(const WeightLayout& layout, int cols) {
  return size_t(cols) / size_t(layout.block) * block_bytes(layout);
}

}  // namespace kveval::cpu
