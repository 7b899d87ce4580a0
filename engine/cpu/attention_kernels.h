// What attention asks of a SIMD level: the state of one span, the merge of two states, the end of a row.
// attention.cpp decides who computes which state; these three say what the numbers are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/profile.h"

namespace kveval::cpu {

inline constexpr int kTileKeys = 64;
inline constexpr int kSpanTiles = 16;

// A block of query rows of one KV head, and how their keys and values are coded. A row sees the keys at
// positions p - window + 1 .. p (window 0: 0 .. p).
struct AttentionRows {
  int rows;
  int head_dim;
  Format k_format, v_format;
  size_t window;
  const float* q;  // [rows][head_dim], already times log2(e) * score_scale: weights are 2^(score - max)
  const size_t* position;  // [rows], each row's p
};

// One tile, and the consecutive rows that walk it: each sees at least one of its keys.
struct TileVisit {
  const uint8_t* k;      // [head_dim][64] codes
  const uint8_t* v;      // [64][head_dim] codes
  const float* k_scale;  // [64] or null
  const float* v_scale;  // [64] or null
  size_t first_key;      // position of the tile's first key
  int row_begin, row_end;
};

// Online softmax of some keys: o = sum of weight * value, l = sum of weights in 16 lanes (key mod 16), m =
// largest score; m = -inf where a row has seen nothing. A merged state folds l into one number.
struct SpanState {
  float* o;  // [rows][head_dim]
  float* m;  // [rows + 15]: vectors read past the end
  float* l;  // [rows][16]
};
struct MergedState {
  float* o;  // [rows][head_dim]
  float* m;  // [rows + 15]
  float* l;  // [rows]
};

struct AttentionKernels {
  // The state of one span from nothing: visits[0 .. count) are its tiles from left to right (several visits
  // of one tile by different rows stand together). visits[count], if `more`, is what comes next: a hint for
  // prefetching. scratch: attention_scratch_floats(rows.rows, head_dim) floats, 64-byte aligned.
  void (*span)(const AttentionRows& rows, const TileVisit* visits, int count, bool more,
               const SpanState& state, float* scratch);
  // total = total merged with the span to its right, for rows that saw something of it.
  void (*merge)(int rows, int head_dim, const SpanState& span, const MergedState& total);
  // out[d] = o[d] / l, as one multiplication by 1 / l and an addition of +0: no output is -0.
  void (*finish)(int head_dim, const float* o, float l, float* out);
};

inline constexpr int kRowsInFlight = 24;  // their scores, [24][64] floats, stay in L1

constexpr size_t attention_scratch_floats(int rows, int head_dim) {
  // q with a format's factor in it, of the rows in flight; in bfloat16 all rows' q as pairs.
  const int q_rows = rows / 2 + 1 > kRowsInFlight ? rows / 2 + 1 : kRowsInFlight;
  return 2 * size_t(kTileKeys) * size_t(head_dim)     // one tile's keys and values as floats
         + size_t(kRowsInFlight) * size_t(kTileKeys)  // scores, then weights
         + 2 * size_t(kTileKeys)                      // scales with a format's factor in them
         + size_t(q_rows) * size_t(head_dim);
}

}  // namespace kveval::cpu
