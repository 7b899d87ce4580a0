// 16 float lanes: V is one zmm (avx512) or two ymm (avx2). Kernels are written once over V and compiled per
// level.
//
// Include this only from *_simd.cpp, which CMake compiles twice with KVEVAL_LEVEL = avx2 and avx512.
// Everything such a file defines lives in namespace kveval::KVEVAL_LEVEL or in an anonymous one, and it calls
// no inline function of the standard library: std::min<int> compiled here would be AVX-512 code under a name
// every file shares, and the linker may keep that copy for all of them, on machines that cannot run it. Hence
// the short list of headers.
#pragma once

// GCC 12 warns about its own header, whose "undefined" registers start from themselves (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstddef>
#include <cstdint>

#include "engine/cpu/constants.h"
#include "engine/profile.h"

#ifndef KVEVAL_LEVEL
#error "simd.h is for *_simd.cpp files, which are compiled once per SIMD level"
#endif

#define KVEVAL_INLINE static inline __attribute__((always_inline))

namespace kveval::KVEVAL_LEVEL {

#ifdef __AVX512F__

inline constexpr int kRegisters = 32;  // vector registers

struct V {
  __m512 v;
};

KVEVAL_INLINE V zero() { return {_mm512_setzero_ps()}; }
KVEVAL_INLINE V splat(float x) { return {_mm512_set1_ps(x)}; }
KVEVAL_INLINE V load(const float* p) { return {_mm512_loadu_ps(p)}; }
KVEVAL_INLINE void store(float* p, V x) { _mm512_storeu_ps(p, x.v); }
KVEVAL_INLINE V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
KVEVAL_INLINE V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
KVEVAL_INLINE V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
KVEVAL_INLINE V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
KVEVAL_INLINE V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }  // a * b + c, one rounding
KVEVAL_INLINE V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }              // b where either is NaN
KVEVAL_INLINE V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
KVEVAL_INLINE V absolute(V a) { return {_mm512_abs_ps(a.v)}; }

// p * 2^n where x >= kExp2Lowest, else +0; t = n + kRound.
KVEVAL_INLINE V scale_by_power(V p, V t, V x) {
  const __mmask16 normal = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(cpu::kExp2Lowest), _CMP_GE_OQ);
  return {_mm512_castsi512_ps(_mm512_maskz_add_epi32(normal, _mm512_castps_si512(p.v),
                                                     _mm512_slli_epi32(_mm512_castps_si512(t.v), 23)))};
}

KVEVAL_INLINE __m256 fold_add(V x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
}
KVEVAL_INLINE __m256 fold_max(V x) {
  return _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
}

#else

inline constexpr int kRegisters = 16;  // half as many V

struct V {
  __m256 a, b;  // lanes 0-7 and 8-15
};

KVEVAL_INLINE V zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KVEVAL_INLINE V splat(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
KVEVAL_INLINE V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KVEVAL_INLINE void store(float* p, V x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
KVEVAL_INLINE V add(V x, V y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
KVEVAL_INLINE V sub(V x, V y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
KVEVAL_INLINE V mul(V x, V y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
KVEVAL_INLINE V div(V x, V y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
KVEVAL_INLINE V fma(V x, V y, V z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
KVEVAL_INLINE V max(V x, V y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
KVEVAL_INLINE V min(V x, V y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
KVEVAL_INLINE V absolute(V x) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}

KVEVAL_INLINE __m256 scale_by_power8(__m256 p, __m256 t, __m256 x) {
  const __m256 normal = _mm256_cmp_ps(x, _mm256_set1_ps(cpu::kExp2Lowest), _CMP_GE_OQ);
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_and_ps(normal, _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted)));
}
KVEVAL_INLINE V scale_by_power(V p, V t, V x) {
  return {scale_by_power8(p.a, t.a, x.a), scale_by_power8(p.b, t.b, x.b)};
}

KVEVAL_INLINE __m256 fold_add(V x) { return _mm256_add_ps(x.a, x.b); }
KVEVAL_INLINE __m256 fold_max(V x) { return _mm256_max_ps(x.a, x.b); }

#endif

// The fixed tree: lane i + lane i+8, then i + i+4, i + i+2, i + i+1.
KVEVAL_INLINE float sum(V x) {
  const __m256 eight = fold_add(x);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
KVEVAL_INLINE float largest(V x) {
  const __m256 eight = fold_max(x);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// a * b + c in one rounding; std::fmaf would be a library call outside an -mfma file.
KVEVAL_INLINE float fma1(float a, float b, float c) {
  return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

// 2^x for x < 128; +0 below kExp2Lowest and for NaN.
template <int Count>
KVEVAL_INLINE V exp2(V x, const float (&coefficients)[Count]) {
  const V t = add(x, splat(cpu::kRound));
  const V r = sub(x, sub(t, splat(cpu::kRound)));
  V p = splat(coefficients[Count - 1]);
#pragma GCC unroll 6
  for (int i = Count - 2; i >= 0; i--) p = fma(p, r, splat(coefficients[i]));
  return scale_by_power(p, t, x);
}
KVEVAL_INLINE V exp2(V x) { return exp2(x, cpu::kExp2); }

// ---------------------------------------------------------------------- 16 codes to floats

template <Format F>
inline constexpr size_t kCodeBytes = F == Format::f32                         ? 4
                                     : F == Format::fp16 || F == Format::bf16 ? 2
                                                                              : 1;

// raw<F>() * kRawFactor<F> is what the codes mean. E4M3 bits placed in a half give value / 256, exactly, for
// every code but NaN (0x7f, 0xff): those read as 480 here, but a cache that holds one is refused
// (check_finite in cpu_engine.cpp). The factor is a power of two, so a caller may put it anywhere (into a
// scale, into the other operand) and every product keeps its bits. E5M2 is the upper byte of a half.
template <Format F>
inline constexpr float kRawFactor = F == Format::e4m3 ? 256.f : 1.f;

#ifdef __AVX512F__

template <Format F>
KVEVAL_INLINE V raw(const uint8_t* codes) {
  if constexpr (F == Format::f32) {
    return {_mm512_loadu_ps(codes)};
  } else if constexpr (F == Format::fp16) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)))};
  } else if constexpr (F == Format::bf16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
  } else {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    if constexpr (F == Format::int8) return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes))};
    const __m256i words = _mm256_cvtepi8_epi16(bytes);
    if constexpr (F == Format::e5m2) return {_mm512_cvtph_ps(_mm256_slli_epi16(words, 8))};
    // sign to bit 15 (cvtepi8 has copied it upwards), exponent and mantissa to bits 13 .. 7, bit 14 cleared
    return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(words, 7), _mm256_set1_epi16(short(0xbf80))))};
  }
}

#else

template <Format F>
KVEVAL_INLINE __m256 raw8(const uint8_t* codes) {
  if constexpr (F == Format::f32) {
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  } else if constexpr (F == Format::fp16) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  } else if constexpr (F == Format::bf16) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  } else {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
    if constexpr (F == Format::int8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    const __m128i words = _mm_cvtepi8_epi16(bytes);
    if constexpr (F == Format::e5m2) return _mm256_cvtph_ps(_mm_slli_epi16(words, 8));
    // sign to bit 15 (cvtepi8 has copied it upwards), exponent and mantissa to bits 13 .. 7, bit 14 cleared
    return _mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(words, 7), _mm_set1_epi16(short(0xbf80))));
  }
}
template <Format F>
KVEVAL_INLINE V raw(const uint8_t* codes) {
  return {raw8<F>(codes), raw8<F>(codes + 8 * kCodeBytes<F>)};
}

#endif

// 16 codes as the values they stand for.
template <Format F>
KVEVAL_INLINE V decode(const uint8_t* codes) {
  if constexpr (kRawFactor<F> == 1.f) return raw<F>(codes);
  return mul(raw<F>(codes), splat(kRawFactor<F>));
}

}  // namespace kveval::KVEVAL_LEVEL
