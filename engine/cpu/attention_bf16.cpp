// attention_simd.cpp's spans with vdpbf16ps: queries, keys, values and softmax weights rounded to bfloat16,
// two dimensions of a key or two keys of a dimension a dword. Sums of weights take them unrounded.
//
// There is one way through a tile, for one row or many. At one new token two threads then read 16-bit codes
// at 0.5-0.7 of the memory's rate, 8-bit ones at 0.8-0.9 of what attention_simd.cpp's way without panels
// reaches.
#include <cstring>

#include "engine/cpu/attention_panels.h"
#include "engine/cpu/bf16_kernels.h"
#include "engine/cpu/bf16_pairs.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

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
  return for_format(format, scaled, []<Format F, bool Scaled>() -> Decode { return decode_keys<F, Scaled>; });
}
Decode decode_values_of(Format format, bool scaled) {
  return for_format(format, scaled,
                    []<Format F, bool Scaled>() -> Decode { return decode_values<F, Scaled>; });
}

// ---------------------------------------------------------------------- spans

struct Bfloat16 {
  // Six rows are what accumulators of four panels leave registers for.
  static constexpr int kPerDword = 2, kNarrowRows = 6;
  KVEVAL_INLINE V exp2(V x) { return KVEVAL_LEVEL::exp2(x, cpu::kExp2Short); }
  KVEVAL_INLINE void put_weights(float* s, const V (&weight)[4]) {
    store(s, neighbours(weight[0], weight[1]));
    store(s + 16, neighbours(weight[2], weight[3]));
  }
};

template <int HeadDim>
void attend(const AttentionRows& rows, const TileVisit* visits, int count, bool more, const SpanState& state,
            const Scratch& scratch) {
  clear<HeadDim>(rows.rows, state);
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
    attend_panels<Bfloat16, HeadDim>(rows, visit, scratch.q, state, scratch);
  }
}

}  // namespace

void attend_span_bf16(const AttentionRows& rows, const TileVisit* visits, int count, bool more,
                      const SpanState& state, float* scratch) {
  for_head_dim(rows.head_dim, [&]<int HeadDim>() {
    attend<HeadDim>(rows, visits, count, more, state, scratch_of(scratch, HeadDim));
  });
}

}  // namespace kveval::KVEVAL_LEVEL
