#include <cmath>

#include "engine/kv/codec.h"
#include "engine/kv/codec_kernels.h"

namespace kveval::kv::scalar {
namespace {

constexpr int kLanes = 16;

float fold(const float* lanes) {
  float eight[8], four[4];
  for (int i = 0; i < 8; i++) eight[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; i++) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace

void encode_row(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                RowStats* stats) {
  const size_t step = stride * code_bytes(format);
  const float clipped_from = clips_from(format);
  RowStats row;
  float error_energy[kLanes] = {}, energy[kLanes] = {};
  for (int i = 0; i < n; i++) {
    uint8_t* code = codes + size_t(i) * step;
    const float scaled = x[i] / scale;
    encode(format, scaled, code);
    const float decoded = decode(format, code) * scale;
    const float error = decoded - x[i];
    row.clipped += std::fabs(scaled) >= clipped_from ? 1 : 0;
    row.flushed += x[i] != 0.0f && decode(format, code) == 0.0f ? 1 : 0;
    if (std::fabs(x[i]) > row.absolute_max) row.absolute_max = std::fabs(x[i]);
    error_energy[i % kLanes] += error * error;
    energy[i % kLanes] += x[i] * x[i];
  }
  row.error_energy = fold(error_energy);
  row.energy = fold(energy);
  *stats = row;
}

}  // namespace kveval::kv::scalar
