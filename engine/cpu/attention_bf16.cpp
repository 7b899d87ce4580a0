// attention_simd.cpp's spans with vdpbf16ps: queries, keys, values and softmax weights rounded to bfloat16,
// two dimensions of a key or two keys of a dimension a dword. Sums of weights take them unrounded.
//
// There is one way through a tile, for one row or many: at one new token the panels of a tile cost less than
// reading its codes from memory.
#include <cstring>

#include "engine/cpu/attention_panels.h"
#include "engine/cpu/bf16_kernels.h"
#include "engine/cpu/bf16_pairs.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

using cpu::SpanState;
using cpu::TileVisit;

constexpr int kPairs = kTileKeys / 2;

// ---------------------------------------------------------------------- panels of pairs

// Panel j of the keys: [head_dim / 2][16], keys 16 j .. 16 j + 15, two dimensions a dword.
template <Format F, bool Scaled>
void decode_keys(const uint8_t* codes, const uint8_t* next, const float* scale, int head_dim, float* panels) {
  const auto key = [=](size_t d, size_t j) __attribute__((always_inline)) {
    const V x = decode<F>(codes + (d * kTile + 16 * j) * kCodeBytes<F>);
    if constexpr (Scaled) return mul(x, load(scale + 16 * j));
    return x;
  };
  for (size_t d = 0; d < size_t(head_dim); d += 2) {
    for (size_t line = 0; line < 2 * kCodeBytes<F>; line++)
      prefetch_line(next, (d * kCodeBytes<F> + line) * 64);
#pragma GCC unroll 4
    for (size_t j = 0; j < kTile / 16; j++)
      store(panels + (j * size_t(head_dim) + d) / 2 * 16, pairs(key(d, j), key(d + 1, j)));
  }
}

// Panel i of the values: [32][16], dimensions 16 i .. 16 i + 15, two keys a dword.
template <Format F, bool Scaled>
void decode_values(const uint8_t* codes, const uint8_t* next, const float* scale, int head_dim,
                   float* panels) {
  const auto value = [=](size_t j, size_t i) __attribute__((always_inline)) {
    const V x = decode<F>(codes + (j * size_t(head_dim) + 16 * i) * kCodeBytes<F>);
    if constexpr (Scaled) return mul(x, splat(scale[j]));
    return x;
  };
  for (size_t j = 0; j < kTile; j += 2)
    for (size_t i = 0; i < size_t(head_dim) / 16; i++) {
      if (i % 4 == 0)  // 64 codes of each of the two keys
        for (size_t line = 0; line < kCodeBytes<F>; line++) {
          prefetch_line(next, (j * size_t(head_dim) + 16 * i) * kCodeBytes<F> + line * 64);
          prefetch_line(next, ((j + 1) * size_t(head_dim) + 16 * i) * kCodeBytes<F> + line * 64);
        }
      store(panels + (i * kPairs + j / 2) * 16, pairs(value(j, i), value(j + 1, i)));
    }
}

using Decode = void (*)(const uint8_t* codes, const uint8_t* next, const float* scale, int head_dim,
                        float* panels);

Decode decode_keys_of(Format format, bool scaled) {
  switch (format) {
    case Format::f32: return scaled ? decode_keys<Format::f32, true> : decode_keys<Format::f32, false>;
    case Format::fp16: return scaled ? decode_keys<Format::fp16, true> : decode_keys<Format::fp16, false>;
    case Format::bf16: return scaled ? decode_keys<Format::bf16, true> : decode_keys<Format::bf16, false>;
    case Format::e4m3: return scaled ? decode_keys<Format::e4m3, true> : decode_keys<Format::e4m3, false>;
    case Format::e5m2: return scaled ? decode_keys<Format::e5m2, true> : decode_keys<Format::e5m2, false>;
    case Format::int8: return scaled ? decode_keys<Format::int8, true> : decode_keys<Format::int8, false>;
  }
  return nullptr;
}
Decode decode_values_of(Format format, bool scaled) {
  switch (format) {
    case Format::f32: return scaled ? decode_values<Format::f32, true> : decode_values<Format::f32, false>;
    case Format::fp16: return scaled ? decode_values<Format::fp16, true> : decode_values<Format::fp16, false>;
    case Format::bf16: return scaled ? decode_values<Format::bf16, true> : decode_values<Format::bf16, false>;
    case Format::e4m3: return scaled ? decode_values<Format::e4m3, true> : decode_values<Format::e4m3, false>;
    case Format::e5m2: return scaled ? decode_values<Format::e5m2, true> : decode_values<Format::e5m2, false>;
    case Format::int8: return scaled ? decode_values<Format::int8, true> : decode_values<Format::int8, false>;
  }
  return nullptr;
}

// Rows whose accumulators of four panels fit in registers; fewer chains would wait for each other.
constexpr int kFewRows = 6;

template <int Depth, int AStride>
void multiply(int rows, const float* a, const float* panels, int width, float* c, size_t ldc,
              const float* init) {
  if (rows <= kFewRows)
    return multiply_panels<Depth, AStride, 4, kFewRows>(rows, a, panels, width, c, ldc, init);
  multiply_panels<Depth, AStride>(rows, a, panels, width, c, ldc, init);
}

// ---------------------------------------------------------------------- softmax

KVEVAL_INLINE V exp2_short(V x) {
  const V t = add(x, splat(cpu::kRound));
  const V r = sub(x, sub(t, splat(cpu::kRound)));
  V p = splat(cpu::kExp2Short[4]);
#pragma GCC unroll 4
  for (int i = 3; i >= 0; i--) p = fma(p, r, splat(cpu::kExp2Short[i]));
  return scale_by_power(p, t, x);
}

// n rows of 64 scores become 32 pairs of weights, at the row's begin; maxima and lane sums move on,
// `correction` is what earlier sums and outputs must be multiplied with.
void softmax(float* scores, int n, float* m, float* l, float* correction) {
  float largest_score[kPaddedRows];
  for (size_t r = 0; r < size_t(n); r++) {
    const float* s = scores + r * kTile;
    largest_score[r] = largest(max(max(load(s), load(s + 16)), max(load(s + 32), load(s + 48))));
  }
  for (size_t r = 0; r < size_t(n); r += 16) {
    const V before = load(m + r), now = max(load(largest_score + r), before);
    store(correction + r, exp2_short(sub(before, now)));
    store(largest_score + r, now);
  }
  std::memcpy(m, largest_score, size_t(n) * sizeof(float));
  for (size_t r = 0; r < size_t(n); r++) {
    float* s = scores + r * kTile;
    const V base = splat(m[r]);
    V weight[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) weight[i] = exp2_short(sub(load(s + 16 * i), base));
    store(s, neighbours(weight[0], weight[1]));
    store(s + 16, neighbours(weight[2], weight[3]));
    const V tile_sum = add(add(weight[0], weight[1]), add(weight[2], weight[3]));
    store(l + r * 16, fma(load(l + r * 16), splat(correction[r]), tile_sum));
  }
}

// ---------------------------------------------------------------------- spans

struct Scratch {
  float* key_panels;    // [64 / 16][head_dim / 2][16] pairs
  float* value_panels;  // [head_dim / 16][32][16] pairs
  float* scores;        // [kRowsInFlight][kTileKeys]
  float* q;             // [rows][head_dim / 2] pairs
};

template <int HeadDim>
void attend_tile(const AttentionRows& rows, const TileVisit& visit, const SpanState& state,
                 const Scratch& scratch) {
  float correction[kPaddedRows];
  for (int row = visit.row_begin, n; row < visit.row_end; row += n) {
    n = visit.row_end - row < kRowsInFlight ? visit.row_end - row : kRowsInFlight;
    multiply<HeadDim / 2, HeadDim / 2>(n, scratch.q + size_t(row) * (HeadDim / 2), scratch.key_panels,
                                       kTileKeys, scratch.scores, kTileKeys, nullptr);
    mask(rows, visit.first_key, row, n, scratch.scores);
    softmax(scratch.scores, n, state.m + row, state.l + size_t(row) * 16, correction);
    multiply<kPairs, kTileKeys>(n, scratch.scores, scratch.value_panels, HeadDim,
                                state.o + size_t(row) * HeadDim, HeadDim, correction);
  }
}

template <int HeadDim>
void attend(const AttentionRows& rows, const TileVisit* visits, int count, bool more, const SpanState& state,
            const Scratch& scratch) {
  for (int r = 0; r < rows.rows; r++) state.m[r] = kMinusInfinity;
  std::memset(state.l, 0, size_t(rows.rows) * 16 * sizeof(float));
  std::memset(state.o, 0, size_t(rows.rows) * HeadDim * sizeof(float));
  for (int r = 0; r < rows.rows; r++)
    pack_neighbours(rows.q + size_t(r) * HeadDim, HeadDim, scratch.q + size_t(r) * (HeadDim / 2));
  const uint8_t* decoded = nullptr;  // the tile the panels hold: forks that share it meet it again
  for (int i = 0; i < count; i++) {
    const TileVisit& visit = visits[i];
    if (decoded != visit.k) {
      const TileVisit* next = i + 1 < count || more ? &visits[i + 1] : nullptr;
      decode_keys_of(rows.k_format, visit.k_scale != nullptr)(visit.k, next ? next->k : nullptr,
                                                              visit.k_scale, HeadDim, scratch.key_panels);
      decode_values_of(rows.v_format, visit.v_scale != nullptr)(visit.v, next ? next->v : nullptr,
                                                                visit.v_scale, HeadDim, scratch.value_panels);
      decoded = visit.k;
    }
    attend_tile<HeadDim>(rows, visit, state, scratch);
  }
}

}  // namespace

void attend_span_bf16(const AttentionRows& rows, const TileVisit* visits, int count, bool more,
                      const SpanState& state, float* scratch) {
  const size_t tile_pairs = kTile * size_t(rows.head_dim) / 2;
  Scratch parts{};
  parts.key_panels = scratch;
  parts.value_panels = parts.key_panels + tile_pairs;
  parts.scores = parts.value_panels + tile_pairs;
  parts.q = parts.scores + kRowsInFlight * kTile;
  switch (rows.head_dim) {
    case 64: return attend<64>(rows, visits, count, more, state, parts);
    case 128: return attend<128>(rows, visits, count, more, state, parts);
    case 256: return attend<256>(rows, visits, count, more, state, parts);
    default: return;  // Attention::run refuses other sizes
  }
}

}  // namespace kveval::KVEVAL_LEVEL
