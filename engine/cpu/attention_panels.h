// What attention_simd.cpp and attention_bf16.cpp do alike: rows times the panels of a decoded tile, the
// causal mask, the online softmax. Arithmetic says in what they differ: kPerDword values in a dword of an
// operand; exp2(x); put_weights(s, weight), a row's 64 softmax weights as dwords; kNarrowRows, rows up to
// which four panels are taken at a time (0: never).
#pragma once

#include <cstring>

#include "engine/cpu/attention_kernels.h"
#include "engine/cpu/micro_kernel.h"

namespace kveval::KVEVAL_LEVEL {

using cpu::AttentionRows;
using cpu::kRowsInFlight;
using cpu::kTileKeys;
using cpu::SpanState;
using cpu::TileVisit;

inline constexpr float kMinusInfinity = -__builtin_inff();
inline constexpr size_t kTile = kTileKeys;
// Row counts are rounded up to whole vectors when per-row numbers are handled 16 at a time.
inline constexpr int kPaddedRows = kRowsInFlight + 16;

// A line of the tile that follows (null: none does), fetched while this one is decoded. Else every tile
// starts cold: up to 2.6 times the time.
static inline void prefetch_line(const uint8_t* next, size_t byte) {
  if (next) _mm_prefetch(reinterpret_cast<const char*>(next + byte), _MM_HINT_T0);
}

// c[r][0 .. width) = (init ? init[r] * c[r] : 0) + a[r][0 .. Depth) * a whole tile of panels, Depth dwords;
// rows of a are AStride dwords apart.
template <int Depth, int AStride, int Vectors, int Rows>
static void multiply_panels(int rows, const float* a, const float* panels, int width, float* c, size_t ldc,
                            const float* init) {
  for (int w = 0; w < width; w += 16 * Vectors)
    for (int r = 0, n; r < rows; r += n) {
      n = rows - r < Rows ? rows - r : Rows;
      const auto begin = [of = init ? init + r : nullptr](size_t i, const float* sum)
          __attribute__((always_inline)) {
        return of ? mul(splat(of[i]), load(sum)) : zero();
      };
      micro_rows<AStride, Vectors, Rows>(n, a + size_t(r) * AStride,
                                         Panels{panels + size_t(w) * Depth, size_t(Depth) * 16},
                                         Constant<Depth>{}, c + size_t(r) * ldc + w, ldc, begin, [](int) {});
    }
}

template <class Arithmetic, int Depth, int AStride>
static void multiply_tile(int rows, const float* a, const float* panels, int width, float* c, size_t ldc,
                          const float* init) {
  constexpr int kNarrow = Arithmetic::kNarrowRows;
  if constexpr (kNarrow > 0)  // fewer chains would wait for each other
    if (rows <= kNarrow)
      return multiply_panels<Depth, AStride, 4, kNarrow>(rows, a, panels, width, c, ldc, init);
  multiply_panels<Depth, AStride, kMicroVectors, kMicroRows>(rows, a, panels, width, c, ldc, init);
}

// -inf where row i of the visit does not see a key.
static inline void mask(const AttentionRows& rows, size_t first_key, int row, int n, float* scores) {
  for (int r = 0; r < n; r++) {
    const size_t position = rows.position[row + r];
    float* s = scores + size_t(r) * kTile;
    if (position < first_key + kTileKeys - 1)
      for (int j = int(position + 1 - first_key); j < kTileKeys; j++) s[j] = kMinusInfinity;
    if (rows.window != 0 && position >= first_key + rows.window) {
      const int hidden = int(position + 1 - rows.window - first_key);
      for (int j = 0; j < hidden; j++) s[j] = kMinusInfinity;
    }
  }
}

// n rows of 64 scores become weights, dwords at the row's begin; maxima and lane sums move on, `correction`
// is what earlier sums and outputs must be multiplied with.
template <class Arithmetic>
static void softmax(float* scores, int n, float* m, float* l, float* correction) {
  float largest_score[kPaddedRows];
  for (size_t r = 0; r < size_t(n); r++) {
    const float* s = scores + r * kTile;
    largest_score[r] = largest(max(max(load(s), load(s + 16)), max(load(s + 32), load(s + 48))));
  }
  for (size_t r = 0; r < size_t(n); r += 16) {
    const V before = load(m + r), now = max(load(largest_score + r), before);
    store(correction + r, Arithmetic::exp2(sub(before, now)));
    store(largest_score + r, now);
  }
  std::memcpy(m, largest_score, size_t(n) * sizeof(float));
  for (size_t r = 0; r < size_t(n); r++) {
    float* s = scores + r * kTile;
    const V base = splat(m[r]);
    V weight[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) weight[i] = Arithmetic::exp2(sub(load(s + 16 * i), base));
    Arithmetic::put_weights(s, weight);
    const V tile_sum = add(add(weight[0], weight[1]), add(weight[2], weight[3]));
    store(l + r * 16, fma(load(l + r * 16), splat(correction[r]), tile_sum));
  }
}

// One thread's working space, attention_scratch_floats of it.
struct Scratch {
  float* key_panels;    // [64 / 16][head_dim][16] floats, or half as many pairs
  float* value_panels;  // [head_dim / 16][64][16], likewise
  float* scores;        // [kRowsInFlight][kTileKeys]
  float* k_scale;       // [kTileKeys]
  float* v_scale;       // [kTileKeys]
  float* q;             // what is left: [kRowsInFlight][head_dim], or [rows][head_dim / 2]
};

static inline Scratch scratch_of(float* scratch, int head_dim) {
  const size_t tile = kTile * size_t(head_dim);
  Scratch parts{};
  parts.key_panels = scratch;
  parts.value_panels = parts.key_panels + tile;
  parts.scores = parts.value_panels + tile;
  parts.k_scale = parts.scores + kRowsInFlight * kTile;
  parts.v_scale = parts.k_scale + kTileKeys;
  parts.q = parts.v_scale + kTileKeys;
  return parts;
}

// A span begins with nothing seen.
template <int HeadDim>
static void clear(int rows, const SpanState& state) {
  for (int r = 0; r < rows; r++) state.m[r] = kMinusInfinity;
  std::memset(state.l, 0, size_t(rows) * 16 * sizeof(float));
  std::memset(state.o, 0, size_t(rows) * HeadDim * sizeof(float));
}

// The rows of one visit against decoded panels. q: dwords of all rows.
template <class Arithmetic, int HeadDim>
static void attend_panels(const AttentionRows& rows, const TileVisit& visit, const float* q,
                          const SpanState& state, const Scratch& scratch) {
  constexpr int kQueryDwords = HeadDim / Arithmetic::kPerDword,
                kWeightDwords = kTileKeys / Arithmetic::kPerDword;
  float correction[kPaddedRows];
  for (int row = visit.row_begin, n; row < visit.row_end; row += n) {
    n = visit.row_end - row < kRowsInFlight ? visit.row_end - row : kRowsInFlight;
    multiply_tile<Arithmetic, kQueryDwords, kQueryDwords>(
        n, q + size_t(row) * kQueryDwords, scratch.key_panels, kTileKeys, scratch.scores, kTileKeys, nullptr);
    mask(rows, visit.first_key, row, n, scratch.scores);
    softmax<Arithmetic>(scratch.scores, n, state.m + row, state.l + size_t(row) * 16, correction);
    multiply_tile<Arithmetic, kWeightDwords, kTileKeys>(n, scratch.scores, scratch.value_panels, HeadDim,
                                                        state.o + size_t(row) * HeadDim, HeadDim, correction);
  }
}

// run.operator()<HeadDim>(); Attention::run refuses other sizes.
template <class Run>
static void for_head_dim(int head_dim, const Run& run) {
  switch (head_dim) {
    case 64: return run.template operator()<64>();
    case 128: return run.template operator()<128>();
    case 256: return run.template operator()<256>();
    default: return;
  }
}

// What run.operator()<Format, scaled>() gives.
template <class Run>
static auto for_format(Format format, bool scaled, const Run& run) {
  using enum Format;
  switch (format) {
    case f32: return scaled ? run.template operator()<f32, true>() : run.template operator()<f32, false>();
    case fp16: return scaled ? run.template operator()<fp16, true>() : run.template operator()<fp16, false>();
    case bf16: return scaled ? run.template operator()<bf16, true>() : run.template operator()<bf16, false>();
    case e4m3: return scaled ? run.template operator()<e4m3, true>() : run.template operator()<e4m3, false>();
    case e5m2: return scaled ? run.template operator()<e5m2, true>() : run.template operator()<e5m2, false>();
    case int8: return scaled ? run.template operator()<int8, true>() : run.template operator()<int8, false>();
  }
  return decltype(run.template operator()<f32, true>()){};
}

}  // namespace kveval::KVEVAL_LEVEL
