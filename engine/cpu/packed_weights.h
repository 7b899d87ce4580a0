// 16 rows of packed weights as vectors: the one place where a SIMD kernel gives a weight its value. Both
// paths of a product use it, so that m = 1 and m = 512 multiply the same bits.
//
// A group's codes are read in units of one 64-byte line of the low plane (floats: of one k); a unit's i-th
// weight is weight(group, unit, i).
#pragma once

#include "engine/cpu/simd.h"
#include "engine/cpu/weight_format.h"

namespace kveval::KVEVAL_LEVEL {

// ---------------------------------------------------------------------- 16 dwords

// For pshufb, 16 bytes at a time: byte i of every dword moves to its top, the others become 0.
KVEVAL_INLINE __m128i to_top(int i) {
  const int from = (i << 24) | 0x808080;
  return _mm_setr_epi32(from, from + (4 << 24), from + (8 << 24), from + (12 << 24));
}

#ifdef __AVX512F__

struct Dwords {
  __m512i v;
};

KVEVAL_INLINE Dwords load_dwords(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
KVEVAL_INLINE Dwords shift_right_by(Dwords x, int n) {  // n known at run time only
  return {_mm512_srl_epi32(x.v, _mm_cvtsi32_si128(n))};
}
KVEVAL_INLINE Dwords shift_left(Dwords x, int n) {  // n < 0: to the right
  return {n >= 0 ? _mm512_slli_epi32(x.v, unsigned(n)) : _mm512_srli_epi32(x.v, unsigned(-n))};
}
KVEVAL_INLINE Dwords mask_bytes(Dwords x, int mask) {
  return {_mm512_and_si512(x.v, _mm512_set1_epi8(char(mask)))};
}
KVEVAL_INLINE Dwords select_bits(int x_mask, Dwords x, Dwords y) {  // (x & x_mask) | (y & ~x_mask)
  return {_mm512_ternarylogic_epi32(_mm512_set1_epi8(char(x_mask)), x.v, y.v, 0xCA)};
}
KVEVAL_INLINE Dwords merge_bytes(Dwords x, int x_mask, Dwords y, int y_mask) {  // (x & x_mask) | (y & y_mask)
  return mask_bytes(select_bits(x_mask, x, y), x_mask | y_mask);
}
KVEVAL_INLINE V top_bytes(Dwords x, int i) {  // byte i of every dword, times 2^24
  return {_mm512_cvtepi32_ps(_mm512_shuffle_epi8(x.v, _mm512_broadcast_i32x4(to_top(i))))};
}

#else

struct Dwords {
  __m256i a, b;
};

KVEVAL_INLINE Dwords load_dwords(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
KVEVAL_INLINE Dwords shift_right_by(Dwords x, int n) {
  const __m128i count = _mm_cvtsi32_si128(n);
  return {_mm256_srl_epi32(x.a, count), _mm256_srl_epi32(x.b, count)};
}
KVEVAL_INLINE Dwords shift_left(Dwords x, int n) {
  if (n >= 0) return {_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)};
  return {_mm256_srli_epi32(x.a, -n), _mm256_srli_epi32(x.b, -n)};
}
KVEVAL_INLINE Dwords mask_bytes(Dwords x, int mask) {
  const __m256i m = _mm256_set1_epi8(char(mask));
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
KVEVAL_INLINE Dwords merge_bytes(Dwords x, int x_mask, Dwords y, int y_mask) {
  const Dwords p = mask_bytes(x, x_mask), q = mask_bytes(y, y_mask);
  return {_mm256_or_si256(p.a, q.a), _mm256_or_si256(p.b, q.b)};
}
KVEVAL_INLINE Dwords look_up_bytes(Dwords x, const int8_t (&values)[16]) {
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  return {_mm256_shuffle_epi8(table, x.a), _mm256_shuffle_epi8(table, x.b)};
}
KVEVAL_INLINE V top_bytes(Dwords x, int i) {
  const __m256i from = _mm256_broadcastsi128_si256(to_top(i));
  return {_mm256_cvtepi32_ps(_mm256_shuffle_epi8(x.a, from)),
          _mm256_cvtepi32_ps(_mm256_shuffle_epi8(x.b, from))};
}

#endif

// ---------------------------------------------------------------------- weights

template <TensorType Type>
struct PackedWeights {
  static constexpr cpu::WeightLayout kLayout = cpu::layout_of(Type);
  static constexpr bool kFloats = cpu::is_float(kLayout);
  static constexpr bool kPanels = kLayout.codes == cpu::Codes::f32;  // [k][16] floats already
  static constexpr int kLow = cpu::low_bits(kLayout), kHigh = cpu::high_bits(kLayout);
  static constexpr int kGroup = kLayout.group;
  static constexpr int kUnit = kFloats ? 1 : 32 / kLow;
  static constexpr int kUnits = kGroup / kUnit;

  struct Group {
    V scale, offset;
  };

  KVEVAL_INLINE const uint8_t* block_of(const uint8_t* row_block, int group) {
    return row_block + size_t(group / kGroups) * cpu::block_bytes(kLayout);
  }
  KVEVAL_INLINE const uint8_t* codes_of(const uint8_t* row_block, int group) {
    return block_of(row_block, group) + cpu::codes_at(kLayout) +
           size_t(group % kGroups) * cpu::group_bytes(kLayout);
  }

  // Some line ahead of the block's codes: over all groups, every one of them.
  KVEVAL_INLINE const uint8_t* header_line(const uint8_t* row_block, int group) {
    return block_of(row_block, group) + size_t(group % kGroups) * 64;
  }

  KVEVAL_INLINE Group group(const uint8_t* row_block, int group) {
    Group g{zero(), zero()};  // what a format lacks is never read
    const uint8_t* block = block_of(row_block, group);
    const size_t factors = size_t(group % kGroups) * 16;
    if constexpr (!kFloats) g.scale = raw16<Format::fp16>(block);
    if constexpr (kCodeFactor != 1) g.scale = mul(g.scale, splat(1 / kCodeFactor));
    if constexpr (kLayout.offset) g.offset = raw16<Format::fp16>(block + 32);
    if constexpr (kLayout.factors)
      g.scale = mul(g.scale, raw16<Format::int8>(block + cpu::factors_at(kLayout) + factors));
    if constexpr (kLayout.factors && kLayout.offset)
      g.offset = mul(g.offset, raw16<Format::int8>(block + cpu::offset_factors_at(kLayout) + factors));
    return g;
  }

  // The lines that hold the unit's codes, or where whole bytes stand.
  KVEVAL_INLINE auto unit(const uint8_t* codes, int u) {
    if constexpr (kLow < 8) {
      Unit unit{load_dwords(codes + size_t(u) * 64), {}};
      if constexpr (kHigh > 0)
        unit.high = shift_right_by(load_dwords(codes + cpu::low_plane_bytes(kLayout)), u * kUnit / 4 * kHigh);
      return unit;
    } else {
      return codes + size_t(u) * 64;
    }
  }

  template <class AnyUnit>
  KVEVAL_INLINE V weight(const Group& g, const AnyUnit& unit, int i) {
    const V code = code_of(unit, i);
    if constexpr (kFloats) return code;
    if constexpr (kLayout.offset) return fma(g.scale, code, g.offset);
    return mul(g.scale, code);
  }

 private:
  struct Unit {
    Dwords low, high;
  };

  static constexpr int kGroups = cpu::groups_of(kLayout);
#ifdef __AVX512F__
  static constexpr bool kLookUp = kLow + kHigh <= 5;
#else
  static constexpr bool kLookUp = false;
#endif
  // Codes taken from the bytes of dwords stand at their byte's top when they have a sign, and the byte at the
  // top of a dword: they come times a power of two, which the scale takes back (exactly: it is a half times
  // an integer).
  static constexpr int kUp = kLayout.codes == cpu::Codes::int_signed ? 8 - kLayout.bits : 0;
  static constexpr float kCodeFactor = kLow == 8 || kFloats || kLookUp ? 1.f : float(1 << (24 + kUp));

  template <Format G>
  KVEVAL_INLINE V raw16(const uint8_t* p) {
    return KVEVAL_LEVEL::raw<G>(p);
  }

  KVEVAL_INLINE V code_of(const uint8_t* codes, int i) {
    if constexpr (kLayout.codes == cpu::Codes::f32) return raw16<Format::f32>(codes);
    if constexpr (kLayout.codes == cpu::Codes::f16) return raw16<Format::fp16>(codes);
    if constexpr (kLayout.codes == cpu::Codes::bf16) return raw16<Format::bf16>(codes);
    return raw16<Format::int8>(codes + size_t(i) * 16);
  }

  KVEVAL_INLINE V code_of(const Unit& unit, int i) {
#ifdef __AVX512F__
    if constexpr (kLookUp && kHigh == 0) return look_up(unit.low, cpu::code_shift(kLow, i));
    if constexpr (kLookUp && kHigh > 0) {  // of four neighbours, which share this
      const Dwords low = shift_left(unit.low, -kLow * (i / 4));
      const Dwords high = shift_left(unit.high, kLow - kHigh * (i / 4));
      return look_up(select_bits((1 << kLow) - 1, low, high), 8 * (i % 4));
    }
#endif
    constexpr int kLowMask = ((1 << kLow) - 1) << kUp, kHighMask = ((1 << kHigh) - 1) << (kUp + kLow);
    Dwords bytes = shift_left(unit.low, kUp - kLow * (i / 4));  // of four neighbours, which share this
    if constexpr (kHigh > 0) {
      const Dwords high = shift_left(unit.high, kUp + kLow - kHigh * (i / 4));
      bytes = merge_bytes(bytes, kLowMask, high, kHighMask);
    } else {
      bytes = mask_bytes(bytes, kLowMask);
    }
#ifndef __AVX512F__
    if constexpr (kLayout.codes == cpu::Codes::iq4_nl) bytes = look_up_bytes(bytes, kIq4NlValues);
#endif
    return top_bytes(bytes, i % 4);
  }

#ifdef __AVX512F__
  // vpermps reads only the low four bits of an index, vpermt2ps five: mask, meaning and conversion are one
  // instruction.
  KVEVAL_INLINE V look_up(const Dwords& x, int shift) {
    const __m512i index = _mm512_srli_epi32(x.v, unsigned(shift));
    if constexpr (kHigh == 0) return {_mm512_permutexvar_ps(index, values(0))};
    return {_mm512_permutex2var_ps(values(0), index, values(16))};
  }
  KVEVAL_INLINE __m512 values(int from) {
    const auto value = [from](int i) {
      return float(cpu::code_value(kLayout, (from + i) & ((1 << (kLow + kHigh)) - 1)));
    };
    return _mm512_setr_ps(value(0), value(1), value(2), value(3), value(4), value(5), value(6), value(7),
                          value(8), value(9), value(10), value(11), value(12), value(13), value(14),
                          value(15));
  }
#endif
};

}  // namespace kveval::KVEVAL_LEVEL
