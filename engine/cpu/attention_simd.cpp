// Attention over coded tiles, per SIMD level. Two ways through a tile, same bits: many rows decode it once
// into float panels and run the micro-kernel of matrix products; up to kFewRows rows (one new token, a few
// forks) turn codes into floats in registers.
//
// In a score the lanes run over keys, one chain over head_dim each; in weights * values over dimensions, one
// chain over the tile's 64 keys each. Keys' and values' formats are independent: each side picks its own
// functions.
#include <cstring>

#include "engine/cpu/attention_panels.h"
#include "engine/cpu/level_kernels.h"

namespace kveval::KVEVAL_LEVEL {
namespace {

using cpu::MergedState;

// Rows whose accumulators fit in registers beside the codes: 9 x 2 zmm, 6 x 1 pair of ymm.
constexpr int kPassRows = kRegisters == 32 ? 9 : 6;
// Above, panels win. At 12 rows converting the codes in every pass takes 0.6 of the time for 16-bit codes,
// 0.9 for 8-bit ones; at 24, 0.7 and 1.0.
constexpr int kFewRows = kRowsInFlight;

// ---------------------------------------------------------------------- many rows: panels

// Panel j of the keys: [head_dim][16], keys 16 j .. 16 j + 15.
template <Format F, bool Scaled>
void decode_keys(const uint8_t* codes, const uint8_t* next, const float* scale, int head_dim, float* panels) {
  for (size_t d = 0; d < size_t(head_dim); d++) {
    for (size_t line = 0; line < kCodeBytes<F>; line++) prefetch_line(next, (d * kCodeBytes<F> + line) * 64);
#pragma GCC unroll 4
    for (size_t j = 0; j < kTile / 16; j++) {
      V x = decode<F>(codes + (d * kTile + 16 * j) * kCodeBytes<F>);
      if constexpr (Scaled) x = mul(x, load(scale + 16 * j));
      store(panels + (j * size_t(head_dim) + d) * 16, x);
    }
  }
}

// Panel i of the values: [64][16], dimensions 16 i .. 16 i + 15.
template <Format F, bool Scaled>
void decode_values(const uint8_t* codes, const uint8_t* next, const float* scale, int head_dim,
                   float* panels) {
  for (size_t j = 0; j < kTile; j++)
    for (size_t i = 0; i < size_t(head_dim) / 16; i++) {
      if (i % 4 == 0)
        for (size_t line = 0; line < kCodeBytes<F>; line++)
          prefetch_line(next, (j * size_t(head_dim) + 16 * i) * kCodeBytes<F> + line * 64);
      V x = decode<F>(codes + (j * size_t(head_dim) + 16 * i) * kCodeBytes<F>);
      if constexpr (Scaled) x = mul(x, splat(scale[j]));
      store(panels + (i * kTile + j) * 16, x);
    }
}

// ---------------------------------------------------------------------- few rows: registers

enum class Side { keys, values };

// One operand of a thin product: [depth][width] codes, and one scale per column (keys) or row (values).
struct ThinTile {
  const uint8_t* codes;
  const float* scale;
  int depth, width;
  const uint8_t* next;  // the tile that follows, or null
};

// c[Rows][width] = (init ? init[r] * c[r] : 0) + a[Rows][depth] * raw codes (* scale)
template <Side S, Format F, bool Scaled, int Rows>
void thin(const ThinTile& tile, const float* a, size_t lda, float* c, size_t ldc, const float* init) {
  constexpr size_t kVectors = kRegisters == 16 ? 1 : Rows > 6 ? 2 : 4, kBytes = kCodeBytes<F>;
  const size_t width = size_t(tile.width);
  for (size_t w = 0; w < width; w += 16 * kVectors) {
    V sum[Rows][kVectors];
#pragma GCC unroll 9
    for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; v++)
        sum[r][v] = init ? mul(splat(init[r]), load(c + r * ldc + w + 16 * v)) : zero();
    for (size_t k = 0; k < size_t(tile.depth); k++) {
      const size_t at = (k * width + w) * kBytes;
      const uint8_t* codes = tile.codes + at;
      for (size_t i = 0; i < 16 * kVectors * kBytes; i += 64) prefetch_line(tile.next, at + i);
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; v++) {
        V x = raw<F>(codes + 16 * v * kBytes);
        if constexpr (Scaled)
          x = mul(x, S == Side::keys ? load(tile.scale + w + 16 * v) : splat(tile.scale[k]));
#pragma GCC unroll 9
        for (size_t r = 0; r < Rows; r++) sum[r][v] = fma(splat(a[r * lda + k]), x, sum[r][v]);
      }
    }
#pragma GCC unroll 9
    for (size_t r = 0; r < Rows; r++)
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; v++) store(c + r * ldc + w + 16 * v, sum[r][v]);
  }
}

template <Side S, Format F, bool Scaled, int Rows = kPassRows>
void thin_pass(int rows, const ThinTile& tile, const float* a, size_t lda, float* c, size_t ldc,
               const float* init) {
  if (rows == Rows) return thin<S, F, Scaled, Rows>(tile, a, lda, c, ldc, init);
  if constexpr (Rows > 1) thin_pass<S, F, Scaled, Rows - 1>(rows, tile, a, lda, c, ldc, init);
}

// Up to kFewRows rows, in passes of about the same size. The first one brings the codes to L1.
template <Side S, Format F, bool Scaled>
void thin_rows(int rows, ThinTile tile, const float* a, size_t lda, float* c, size_t ldc, const float* init) {
  const int passes = (rows + kPassRows - 1) / kPassRows;
  for (int pass = 0, row = 0; pass < passes; pass++) {
    const int end = rows * (pass + 1) / passes;
    thin_pass<S, F, Scaled>(end - row, tile, a + size_t(row) * lda, lda, c + size_t(row) * ldc, ldc,
                            init ? init + row : nullptr);
    tile.next = nullptr;
    row = end;
  }
}

// ---------------------------------------------------------------------- one dispatch per side

// How one side (keys or values) of a tile is read.
struct Reader {
  void (*decode)(const uint8_t* codes, const uint8_t* next, const float* scale, int head_dim, float* panels);
  void (*thin)(int rows, ThinTile tile, const float* a, size_t lda, float* c, size_t ldc, const float* init);
  float
      factor;  // thin multiplies raw codes: the scale, or a where there is none, must carry this power of two
};

template <Side S, Format F, bool Scaled>
constexpr Reader kReader = {S == Side::keys ? decode_keys<F, Scaled> : decode_values<F, Scaled>,
                            thin_rows<S, F, Scaled>, kRawFactor<F>};

template <Side S>
Reader reader(Format format, bool scaled) {
  return for_format(format, scaled, []<Format F, bool Scaled>() { return kReader<S, F, Scaled>; });
}

// ---------------------------------------------------------------------- spans

struct Float32 {
  static constexpr int kPerDword = 1, kNarrowRows = 0;
  KVEVAL_INLINE V exp2(V x) { return KVEVAL_LEVEL::exp2(x); }
  KVEVAL_INLINE void put_weights(float* s, const V (&weight)[4]) {
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) store(s + 16 * i, weight[i]);
  }
};

void scale_all(const float* from, float factor, size_t n, float* to) {
  for (size_t i = 0; i < n; i += 16) store(to + i, mul(load(from + i), splat(factor)));
}

// Up to kFewRows rows of one visit.
template <int HeadDim>
void few_rows(const AttentionRows& rows, const TileVisit& visit, const TileVisit* next, const Reader& keys,
              const Reader& values, const SpanState& state, const Scratch& scratch) {
  const int row = visit.row_begin, n = visit.row_end - visit.row_begin;
  float correction[kPaddedRows];
  const float* q = rows.q + size_t(row) * HeadDim;
  ThinTile tile = {visit.k, visit.k_scale, HeadDim, kTileKeys, next ? next->k : nullptr};
  if (keys.factor != 1.f) {
    if (visit.k_scale) {
      scale_all(visit.k_scale, keys.factor, kTileKeys, scratch.k_scale);
      tile.scale = scratch.k_scale;
    } else {
      scale_all(q, keys.factor, size_t(n) * HeadDim, scratch.q);
      q = scratch.q;
    }
  }
  keys.thin(n, tile, q, HeadDim, scratch.scores, kTileKeys, nullptr);
  mask(rows, visit.first_key, row, n, scratch.scores);
  softmax<Float32>(scratch.scores, n, state.m + row, state.l + size_t(row) * 16, correction);

  tile = {visit.v, visit.v_scale, kTileKeys, HeadDim, next ? next->v : nullptr};
  if (values.factor != 1.f) {
    if (visit.v_scale) {
      scale_all(visit.v_scale, values.factor, kTileKeys, scratch.v_scale);
      tile.scale = scratch.v_scale;
    } else {
      scale_all(scratch.scores, values.factor, size_t(n) * kTile, scratch.scores);
    }
  }
  values.thin(n, tile, scratch.scores, kTileKeys, state.o + size_t(row) * HeadDim, HeadDim, correction);
}

template <int HeadDim>
void attend(const AttentionRows& rows, const TileVisit* visits, int count, bool more, const SpanState& state,
            const Scratch& scratch) {
  clear<HeadDim>(rows.rows, state);
  const uint8_t* decoded = nullptr;  // the tile the panels hold: forks that share it meet it again
  for (int i = 0; i < count; i++) {
    const TileVisit& visit = visits[i];
    const TileVisit* next = i + 1 < count || more ? &visits[i + 1] : nullptr;
    const Reader keys = reader<Side::keys>(rows.k_format, visit.k_scale != nullptr);
    const Reader values = reader<Side::values>(rows.v_format, visit.v_scale != nullptr);
    if (visit.row_end - visit.row_begin <= kFewRows && decoded != visit.k) {
      few_rows<HeadDim>(rows, visit, next, keys, values, state, scratch);
      continue;
    }
    if (decoded != visit.k) {
      keys.decode(visit.k, next ? next->k : nullptr, visit.k_scale, HeadDim, scratch.key_panels);
      values.decode(visit.v, next ? next->v : nullptr, visit.v_scale, HeadDim, scratch.value_panels);
      decoded = visit.k;
    }
    attend_panels<Float32, HeadDim>(rows, visit, rows.q, state, scratch);
  }
}

}  // namespace

void attend_span(const AttentionRows& rows, const TileVisit* visits, int count, bool more,
                 const SpanState& state, float* scratch) {
  for_head_dim(rows.head_dim, [&]<int HeadDim>() {
    attend<HeadDim>(rows, visits, count, more, state, scratch_of(scratch, HeadDim));
  });
}

void merge_span(int rows, int head_dim, const SpanState& span, const MergedState& total) {
  for (int begin = 0; begin < rows; begin += 16) {
    const V left = load(total.m + begin), right = load(span.m + begin), both = max(left, right);
    float of_left[16], of_right[16], m[16];
    store(of_left, exp2(sub(left, both)));
    store(of_right, exp2(sub(right, both)));
    store(m, both);
    for (int i = 0; i < 16 && begin + i < rows; i++) {
      const size_t r = size_t(begin) + size_t(i);
      if (span.m[r] == kMinusInfinity) continue;  // saw nothing of this span
      const float *o = span.o + r * size_t(head_dim), *l = span.l + r * 16;
      float* out = total.o + r * size_t(head_dim);
      const V a = splat(of_left[i]), b = splat(of_right[i]);
      for (int d = 0; d < head_dim; d += 16) store(out + d, fma(load(o + d), b, mul(load(out + d), a)));
      total.l[r] = fma1(sum(load(l)), of_right[i], total.l[r] * of_left[i]);
      total.m[r] = m[i];
    }
  }
}

void finish_row(int head_dim, const float* o, float l, float* out) {
  const V inverse = splat(1.f / l);
  for (int d = 0; d < head_dim; d += 16) store(out + d, fma(load(o + d), inverse, zero()));
}

}  // namespace kveval::KVEVAL_LEVEL
