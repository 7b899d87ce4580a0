// Whole rows through a format, one implementation per SIMD level (namespaces scalar, avx2, avx512), same
// bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/profile.h"

namespace kveval::kv {

// What encoding one row did (CacheDiagnostic sums these). Element i adds to lane i % 16; lanes fold in one
// fixed tree (l[i] + l[i+8], then +4, +2, +1). Squares are rounded, then added: no fused multiply-add, which
// the scalar level would have to call a library for.
struct RowStats {
  uint32_t clipped = 0;    // |x / scale| >= clips_from(format): rounds beyond the format's largest value
  uint32_t flushed = 0;    // x != 0 (NaN included) stored as zero
  float absolute_max = 0;  // of x; NaN left out
  float error_energy = 0;  // sum of (decode(code) * scale - x)^2
  float energy = 0;        // sum of x^2
};

// codes[i * stride] (elements, not bytes) = encode(x[i] / scale), i in [0, n), n a multiple of 16. Division
// as IEEE says; scale 1 for unscaled formats. Overwrites *stats.
using EncodeRow = void (*)(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                           RowStats* stats);

namespace scalar {
void encode_row(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                RowStats* stats);
// x[i] = decode(codes[i * stride]) * scale. The attention kernels decode for themselves; this serves
// transcoding.
void decode_row(Format format, const uint8_t* codes, size_t stride, int n, float scale, float* x);
}  // namespace scalar
// Only on a CPU with AVX2, FMA and F16C, or with AVX-512 F, BW, VL and DQ.
namespace avx2 {
void encode_row(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                RowStats* stats);
}
namespace avx512 {
void encode_row(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                RowStats* stats);
}

}  // namespace kveval::kv
