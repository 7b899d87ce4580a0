// encode_row of codec_kernels.h, 16 values at a time; the definition is codec.h by way of codec_scalar.cpp.
#include "engine/cpu/simd.h"

#include "engine/kv/codec.h"
#include "engine/kv/codec_kernels.h"

namespace kveval::kv::KVEVAL_LEVEL {
namespace {

using namespace kveval::KVEVAL_LEVEL;

// ---- 16 integers and 16 truth values of each level

#ifdef __AVX512F__

struct I {
  __m512i v;
};
using Mask = __mmask16;

KVEVAL_INLINE I integer(uint32_t x) { return {_mm512_set1_epi32(int(x))}; }
KVEVAL_INLINE I bits(V x) { return {_mm512_castps_si512(x.v)}; }
KVEVAL_INLINE V floats(I x) { return {_mm512_castsi512_ps(x.v)}; }
KVEVAL_INLINE I rounded(V x) { return {_mm512_cvtps_epi32(x.v)}; }
KVEVAL_INLINE I add(I x, I y) { return {_mm512_add_epi32(x.v, y.v)}; }
KVEVAL_INLINE I sub(I x, I y) { return {_mm512_sub_epi32(x.v, y.v)}; }
KVEVAL_INLINE I both(I x, I y) { return {_mm512_and_si512(x.v, y.v)}; }
KVEVAL_INLINE I either(I x, I y) { return {_mm512_or_si512(x.v, y.v)}; }
template <int kBits>
KVEVAL_INLINE I right(I x) {
  return {_mm512_srli_epi32(x.v, kBits)};
}
KVEVAL_INLINE I select(Mask mask, I yes, I no) { return {_mm512_mask_blend_epi32(mask, no.v, yes.v)}; }

KVEVAL_INLINE Mask less(V x, V y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ); }
KVEVAL_INLINE Mask at_least(V x, V y) { return _mm512_cmp_ps_mask(x.v, y.v, _CMP_GE_OQ); }
KVEVAL_INLINE Mask is_nan(V x) { return _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q); }
// x is not zero (NaN is not), but y is.
KVEVAL_INLINE Mask vanished(V x, V y) {
  return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_NEQ_UQ), y.v,
                                 _mm512_setzero_ps(), _CMP_EQ_OQ);
}
KVEVAL_INLINE uint32_t count(Mask mask) { return uint32_t(_mm_popcnt_u32(mask)); }

KVEVAL_INLINE void store_8_bit(uint8_t* codes, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(x.v));
}
KVEVAL_INLINE void store_16_bit(uint8_t* codes, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtepi32_epi16(x.v));
}
KVEVAL_INLINE void store_fp16(uint8_t* codes, V x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}

#else

struct I {
  __m256i a, b;
};
struct Mask {
  __m256 a, b;
};

KVEVAL_INLINE I integer(uint32_t x) {
  const __m256i v = _mm256_set1_epi32(int(x));
  return {v, v};
}
KVEVAL_INLINE I bits(V x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
KVEVAL_INLINE V floats(I x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
KVEVAL_INLINE I rounded(V x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
KVEVAL_INLINE I add(I x, I y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
KVEVAL_INLINE I sub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
KVEVAL_INLINE I both(I x, I y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
KVEVAL_INLINE I either(I x, I y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int kBits>
KVEVAL_INLINE I right(I x) {
  return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)};
}
KVEVAL_INLINE I select(Mask mask, I yes, I no) {
  return {_mm256_blendv_epi8(no.a, yes.a, _mm256_castps_si256(mask.a)),
          _mm256_blendv_epi8(no.b, yes.b, _mm256_castps_si256(mask.b))};
}

template <int kPredicate>
KVEVAL_INLINE Mask compare(V x, V y) {
  return {_mm256_cmp_ps(x.a, y.a, kPredicate), _mm256_cmp_ps(x.b, y.b, kPredicate)};
}
KVEVAL_INLINE Mask less(V x, V y) { return compare<_CMP_LT_OQ>(x, y); }
KVEVAL_INLINE Mask at_least(V x, V y) { return compare<_CMP_GE_OQ>(x, y); }
KVEVAL_INLINE Mask is_nan(V x) { return compare<_CMP_UNORD_Q>(x, x); }
// x is not zero (NaN is not), but y is.
KVEVAL_INLINE Mask vanished(V x, V y) {
  const Mask present = compare<_CMP_NEQ_UQ>(x, zero()), gone = compare<_CMP_EQ_OQ>(y, zero());
  return {_mm256_and_ps(present.a, gone.a), _mm256_and_ps(present.b, gone.b)};
}
KVEVAL_INLINE uint32_t count(Mask mask) {
  return uint32_t(_mm_popcnt_u32(uint32_t(_mm256_movemask_ps(mask.a) | _mm256_movemask_ps(mask.b) << 8)));
}

// Packing works inside 128-bit halves, so that the quarters come out as 0, 2, 1, 3.
KVEVAL_INLINE __m256i low_halves(I x) {
  const __m256i words = _mm256_set1_epi32(0xFFFF);
  const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(x.a, words), _mm256_and_si256(x.b, words));
  return _mm256_permute4x64_epi64(packed, _MM_SHUFFLE(3, 1, 2, 0));
}
KVEVAL_INLINE void store_8_bit(uint8_t* codes, I x) {
  const __m256i words = low_halves(both(x, integer(0xFF)));
  const __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), packed);
}
KVEVAL_INLINE void store_16_bit(uint8_t* codes, I x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), low_halves(x));
}
KVEVAL_INLINE void store_fp16(uint8_t* codes, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes) + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

#endif

// ---- 16 floats to codes

// Values that round into kMantissa stored bits above 2^(1 - kBias), and into steps of the smallest subnormal
// below. Clamped to the largest value first, none rounds beyond its code.
template <int kMantissa, int kBias, Format kFormat>
KVEVAL_INLINE I encode_fp8(V x) {
  constexpr int kDropped = 23 - kMantissa;
  const I magnitude = both(bits(x), integer(0x7FFFFFFFu));
  const V clamped = min(floats(magnitude), splat(kv::largest(kFormat)));
  const I odd = both(right<kDropped>(bits(clamped)), integer(1));
  const I nearest = right<kDropped>(add(add(bits(clamped), integer((1u << (kDropped - 1)) - 1)), odd));
  const I normal = sub(nearest, integer(uint32_t(127 - kBias) << kMantissa));
  // Added to a power of two whose last bit is worth the smallest subnormal, the hardware rounds to that step.
  const V step = floats(integer(uint32_t(127 + 23 + 1 - kBias - kMantissa) << 23));
  const I subnormal = sub(bits(add(clamped, step)), bits(step));
  const V smallest_normal = floats(integer(uint32_t(128 - kBias) << 23));
  const I code = select(less(clamped, smallest_normal), subnormal, normal);
  const I sign = both(right<24>(bits(x)), integer(0x80));
  return select(is_nan(x), integer(0x7F), either(code, sign));
}

template <Format kFormat>
KVEVAL_INLINE void encode(V x, uint8_t* codes) {
  if constexpr (kFormat == Format::f32) {
    store(reinterpret_cast<float*>(codes), x);
  } else if constexpr (kFormat == Format::fp16) {
    store_fp16(codes, floats(select(is_nan(x), integer(kFloatNan), bits(x))));
  } else if constexpr (kFormat == Format::bf16) {
    const I quiet = select(is_nan(x), integer(kFloatNan), bits(x));
    const I odd = both(right<16>(quiet), integer(1));
    store_16_bit(codes, right<16>(add(add(quiet, integer(0x7FFF)), odd)));
  } else if constexpr (kFormat == Format::e4m3) {
    store_8_bit(codes, encode_fp8<3, 7, kFormat>(x));
  } else if constexpr (kFormat == Format::e5m2) {
    store_8_bit(codes, encode_fp8<2, 15, kFormat>(x));
  } else {
    const V clamped = max(min(x, splat(127.0f)), splat(-127.0f));
    store_8_bit(codes, select(is_nan(x), integer(0), rounded(clamped)));
  }
}

template <Format kFormat>
KVEVAL_INLINE RowStats encode_as(const float* x, int n, float scale, uint8_t* codes, size_t stride) {
  constexpr size_t kBytes = code_bytes(kFormat);
  RowStats row;
  V absolute_max = zero(), error_energy = zero(), energy = zero();
  for (int i = 0; i < n; i += 16, codes += 16 * stride * kBytes) {
    alignas(64) uint8_t gathered[16 * kBytes];
    uint8_t* at = stride == 1 ? codes : gathered;
    const V exact = load(x + i);
    const V scaled = div(exact, splat(scale));
    encode<kFormat>(scaled, at);
    const V value = kveval::KVEVAL_LEVEL::decode<kFormat>(at);
    const V error = sub(mul(value, splat(scale)), exact);
    row.clipped += count(at_least(absolute(scaled), splat(clips_from(kFormat))));
    row.flushed += count(vanished(exact, value));
    absolute_max = max(absolute(exact), absolute_max);  // the second operand where the first is NaN
    error_energy = add(error_energy, mul(error, error));
    energy = add(energy, mul(exact, exact));
    if (stride == 1) continue;
    for (size_t j = 0; j < 16; j++)
      __builtin_memcpy(codes + j * stride * kBytes, gathered + j * kBytes, kBytes);
  }
  row.absolute_max = largest(absolute_max);
  row.error_energy = sum(error_energy);
  row.energy = sum(energy);
  return row;
}

}  // namespace

void encode_row(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                RowStats* stats) {
  switch (format) {
    case Format::f32: *stats = encode_as<Format::f32>(x, n, scale, codes, stride); break;
    case Format::fp16: *stats = encode_as<Format::fp16>(x, n, scale, codes, stride); break;
    case Format::bf16: *stats = encode_as<Format::bf16>(x, n, scale, codes, stride); break;
    case Format::e4m3: *stats = encode_as<Format::e4m3>(x, n, scale, codes, stride); break;
    case Format::e5m2: *stats = encode_as<Format::e5m2>(x, n, scale, codes, stride); break;
    case Format::int8: *stats = encode_as<Format::int8>(x, n, scale, codes, stride); break;
  }
}

}  // namespace kveval::kv::KVEVAL_LEVEL
