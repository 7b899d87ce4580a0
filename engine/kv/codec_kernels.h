// Whole rows through a format, one implementation per SIMD level (namespaces scalar, avx2, avx512), same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/profile.h"

namespace kveval::kv {

// What encoding one row did (CacheDiagnostic sums these). Float sums run over 16 lanes, fixed tree.
struct RowStats {
  uint32_t clipped = 0, flushed = 0;
  float absolute_max = 0;
  float error_energy = 0, energy = 0;
};

// codes[i * stride] (elements, not bytes) = encode(x[i] / scale), i in [0, n), n a multiple of 16. Division as IEEE
// says; scale 1 for unscaled formats.
using EncodeRow = void (*)(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                           RowStats* stats);

}  // namespace kveval::kv
