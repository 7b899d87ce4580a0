// 16 rows of packed weights as vectors: the one place where a SIMD kernel gives a weight its value. Both
// paths of a product use it, so that m = 1 and m = 512 multiply the same bits.
//
// A group's codes are read in units of one 64-byte line (floats: of one k); a unit's i-th weight is
// weight(scales, raw, i).
#pragma once

#include "engine/cpu/simd.h"
#include "engine/cpu/weight_format.h"

namespace kveval::KVEVAL_LEVEL {

#ifdef __AVX512F__

struct Dwords {
  __m512i v;
};

KVEVAL_INLINE Dwords load_dwords(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }

// values[the `Bits` bits at code_shift(Bits, i)] of every dword, as float. vpermps reads only the low four
// bits of an index, so masking, table and conversion are one instruction.
template <int Bits>
KVEVAL_INLINE V code_values(const Dwords& x, int i, const int8_t (&values)[16]) {
  const __m512 table = _mm512_setr_ps(values[0], values[1], values[2], values[3], values[4], values[5],
                                      values[6], values[7], values[8], values[9], values[10], values[11],
                                      values[12], values[13], values[14], values[15]);
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(x.v, unsigned(cpu::code_shift(Bits, i))), table)};
}

#else

struct Dwords {
  __m256i a, b;
};

KVEVAL_INLINE Dwords load_dwords(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}

// Codes that stand for themselves are cut out one by one. Others are looked up as bytes, four neighbours at a
// time (the compiler finds that the four share it), and sign-extended.
template <int Bits>
KVEVAL_INLINE __m256 code_values8(__m256i x, int i, const int8_t (&values)[16]) {
  if (values[1] == 1 && values[(1 << Bits) - 1] == (1 << Bits) - 1) {
    const __m256i shifted = _mm256_srli_epi32(x, cpu::code_shift(Bits, i));
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32((1 << Bits) - 1)));
  }
  const __m128i table = _mm_setr_epi8(values[0], values[1], values[2], values[3], values[4], values[5],
                                      values[6], values[7], values[8], values[9], values[10], values[11],
                                      values[12], values[13], values[14], values[15]);
  const __m256i index = _mm256_and_si256(_mm256_srli_epi32(x, Bits * (i / 4)), _mm256_set1_epi8(15));
  const __m256i bytes = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), index);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(bytes, 24 - 8 * (i % 4)), 24));
}
template <int Bits>
KVEVAL_INLINE V code_values(const Dwords& x, int i, const int8_t (&values)[16]) {
  return {code_values8<Bits>(x.a, i, values), code_values8<Bits>(x.b, i, values)};
}

#endif

template <cpu::WeightFormat F>
struct PackedWeights {
  static constexpr cpu::WeightLayout kLayout = cpu::layout_of(F);
  static constexpr bool kFloats = cpu::is_float(kLayout);
  static constexpr int kGroup = kLayout.group;
  static constexpr int kUnit = kFloats ? 1 : 32 / cpu::code_bits(kLayout);
  static constexpr bool kPanels = kLayout.codes == cpu::CodeKind::f32;  // [k][16] floats already

  struct Scales {
    V scale, offset;
  };

  KVEVAL_INLINE const uint8_t* block_of(const uint8_t* row_block, int group) {
    return row_block + size_t(group / kGroups) * kBlockBytes;
  }

  KVEVAL_INLINE Scales scales(const uint8_t* row_block, int group) {
    Scales s{zero(), zero()};  // what a format lacks is never read
    const uint8_t* block = block_of(row_block, group);
    const size_t factors = size_t(group % kGroups) * 16;
    if constexpr (!kFloats) s.scale = raw16<Format::fp16>(block);
    if constexpr (kLayout.offset) s.offset = raw16<Format::fp16>(block + 32);
    if constexpr (kLayout.factors)
      s.scale = mul(s.scale, raw16<Format::int8>(block + cpu::factors_at(kLayout) + factors));
    if constexpr (kLayout.factors && kLayout.offset)
      s.offset = mul(s.offset, raw16<Format::int8>(block + cpu::offset_factors_at(kLayout) + factors));
    return s;
  }

  KVEVAL_INLINE const uint8_t* address(const uint8_t* row_block, int group, int unit) {
    return block_of(row_block, group) + cpu::codes_at(kLayout) +
           size_t(group % kGroups * kGroup + unit * kUnit) * kCodeBytes16;
  }

  // A unit: the dwords, or where whole codes stand.
  KVEVAL_INLINE auto raw(const uint8_t* address) {
    if constexpr (cpu::code_bits(kLayout) < 8)
      return load_dwords(address);
    else
      return address;
  }

  template <class Raw>
  KVEVAL_INLINE V weight(const Scales& s, const Raw& raw, int i) {
    if constexpr (kLayout.codes == cpu::CodeKind::f32)
      return raw16<Format::f32>(raw);
    else if constexpr (kLayout.codes == cpu::CodeKind::f16)
      return raw16<Format::fp16>(raw);
    else if constexpr (kLayout.codes == cpu::CodeKind::bf16)
      return raw16<Format::bf16>(raw);
    else {
      const V code = code_of(raw, i);
      if constexpr (kLayout.offset)
        return fma(s.scale, code, s.offset);
      else
        return mul(s.scale, code);
    }
  }

 private:
  static constexpr int kGroups = cpu::groups_of(kLayout);
  static constexpr size_t kBlockBytes = cpu::block_bytes(kLayout);
  static constexpr size_t kCodeBytes16 = cpu::code_bytes(kLayout);

  template <Format G>
  KVEVAL_INLINE V raw16(const uint8_t* p) {
    return KVEVAL_LEVEL::raw<G>(p);
  }

  template <class Raw>
  KVEVAL_INLINE V code_of(const Raw& raw, int i) {
    if constexpr (kLayout.codes == cpu::CodeKind::int8)
      return raw16<Format::int8>(raw + size_t(i) * kCodeBytes16);
    else
      return code_values<cpu::code_bits(kLayout)>(raw, i, kLayout.values);
  }
};

}  // namespace kveval::KVEVAL_LEVEL
