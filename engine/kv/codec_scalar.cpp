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

template <Format kFormat>
RowStats encode_as(const float* x, int n, float scale, uint8_t* codes, size_t stride) {
  const size_t step = stride * code_bytes(kFormat);
  RowStats row;
  float error_energy[kLanes] = {}, energy[kLanes] = {};
  for (int i = 0; i < n; i++, codes += step) {
    const float scaled = x[i] / scale;
    encode(kFormat, scaled, codes);
    const float value = decode(kFormat, codes);
    const float error = value * scale - x[i];
    row.clipped += std::fabs(scaled) >= clips_from(kFormat) ? 1 : 0;
    row.flushed += x[i] != 0.0f && value == 0.0f ? 1 : 0;
    if (std::fabs(x[i]) > row.absolute_max) row.absolute_max = std::fabs(x[i]);
    error_energy[i % kLanes] += error * error;
    energy[i % kLanes] += x[i] * x[i];
  }
  row.error_energy = fold(error_energy);
  row.energy = fold(energy);
  return row;
}

template <Format kFormat>
void decode_as(const uint8_t* codes, size_t stride, int n, float scale, float* x) {
  const size_t step = stride * code_bytes(kFormat);
  for (int i = 0; i < n; i++, codes += step) x[i] = decode(kFormat, codes) * scale;
}

// One instance a format, so that the choice is made once a row, not once a value.
template <class Visit>
void with_format(Format format, const Visit& visit) {
  switch (format) {
    case Format::f32: visit.template operator()<Format::f32>(); break;
    case Format::fp16: visit.template operator()<Format::fp16>(); break;
    case Format::bf16: visit.template operator()<Format::bf16>(); break;
    case Format::e4m3: visit.template operator()<Format::e4m3>(); break;
    case Format::e5m2: visit.template operator()<Format::e5m2>(); break;
    case Format::int8: visit.template operator()<Format::int8>(); break;
  }
}

}  // namespace

void encode_row(Format format, const float* x, int n, float scale, uint8_t* codes, size_t stride,
                RowStats* stats) {
  with_format(format, [&]<Format kFormat> { *stats = encode_as<kFormat>(x, n, scale, codes, stride); });
}

void decode_row(Format format, const uint8_t* codes, size_t stride, int n, float scale, float* x) {
  with_format(format, [&]<Format kFormat> { decode_as<kFormat>(codes, stride, n, scale, x); });
}

}  // namespace kveval::kv::scalar
