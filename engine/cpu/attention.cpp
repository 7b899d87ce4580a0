#include "engine/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "engine/cpu/aligned.h"
#include "engine/error.h"

namespace kveval::cpu {
namespace {

static_assert(kTileKeys == kv::kTileTokens);

// Rows of a block: few enough that queries and outputs (2 x 384 KB at head size 256) stay in L2, many enough
// that decoding a tile costs little (one decode of 64 x head_dim against 384 x 64 x head_dim multiply-adds).
constexpr int kMostRows = 384;
// Blocks are not cut below this to feed more threads; spans are divided among them instead.
constexpr int kLeastRows = 128;
// Pieces a thread should find, so that a slow one does not hold up the rest.
constexpr int kPiecesPerThread = 4;
// Span states of all spans at once may take this much; beyond it each block's spans stay with one thread.
constexpr size_t kSpanBytes = size_t(64) << 20;

// Consecutive queries of one segment inside a block.
struct Part {
  const AttentionSegment* segment;
  int first_token, tokens;
  int row;  // the block's row of the first token's first head

  size_t position() const { return segment->first_position + size_t(first_token); }
};

// Rows that are attended together: (token, head within the group), tokens outermost.
struct Block {
  std::vector<Part> parts;
  int rows = 0;
  size_t first_tile = std::numeric_limits<size_t>::max(), last_tile = 0;  // what any of its rows sees

  size_t first_span() const { return first_tile / kSpanTiles; }
  size_t spans() const { return last_tile / kSpanTiles - first_span() + 1; }
};

size_t first_seen(size_t position, size_t window) {
  return window != 0 && position >= window ? position - window + 1 : 0;
}

std::vector<Block> cut_blocks(std::span<const AttentionSegment> segments, int group, size_t window,
                              int most_rows) {
  const int most_tokens = std::max(1, most_rows / group);
  std::vector<Block> blocks;
  int room = 0;  // tokens the last block still takes
  for (const AttentionSegment& segment : segments) {
    for (int token = 0, n; token < segment.tokens; token += n) {
      if (room == 0) {
        blocks.emplace_back();
        room = most_tokens;
      }
      n = std::min(room, segment.tokens - token);
      room -= n;
      Block& block = blocks.back();
      const Part part = {&segment, token, n, block.rows};
      block.parts.push_back(part);
      block.rows += n * group;
      block.first_tile = std::min(block.first_tile, first_seen(part.position(), window) / kTileKeys);
      block.last_tile = std::max(block.last_tile, (part.position() + size_t(n) - 1) / kTileKeys);
    }
  }
  return blocks;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

// Floats of a block's span state and merged state, each part 64-byte aligned.
size_t state_floats(int rows, int head_dim) {
  return size_t(rows) * size_t(head_dim) + round_up(size_t(rows) + kLanes, kLanes) + size_t(rows) * kLanes;
}
SpanState span_state(float* p, int rows, int head_dim) {
  float* m = p + size_t(rows) * size_t(head_dim);
  return {p, m, m + round_up(size_t(rows) + kLanes, kLanes)};
}
MergedState merged_state(float* p, int rows, int head_dim) {
  const SpanState s = span_state(p, rows, head_dim);
  return {s.o, s.m, s.l};
}

}  // namespace

struct Attention::State {
  const Kernels& kernels;
  ThreadPool& pool;

  struct Thread {
    Buffer scratch, q, span, merged;
    std::vector<size_t> position;
    std::vector<TileVisit> visits;
  };
  std::vector<Thread> threads;
  Buffer spans;  // all span states of all blocks, when spans are divided among threads

  // What run() is about.
  const AttentionShape* shape = nullptr;
  std::vector<Block> blocks;
  int group = 1;
  size_t window = 0;
  float factor = 1;  // log2(e) * score_scale

  int head_dim() const { return shape->layout->head_dim; }

  // Queries times `factor`, contiguous, and their positions.
  AttentionRows gather(Thread& thread, const Block& block, int kv_head) const {
    const size_t columns = size_t(head_dim());
    float* q = thread.q.reserve(size_t(block.rows) * columns);
    thread.position.resize(size_t(block.rows));
    size_t row = 0;
    for (const Part& part : block.parts) {
      for (int token = 0; token < part.tokens; token++) {
        const size_t head = size_t(part.first_token + token) * size_t(shape->heads) + size_t(kv_head * group);
        const float* from = part.segment->q + head * columns;
        for (size_t i = 0; i < size_t(group) * columns; i++) q[row * columns + i] = from[i] * factor;
        for (int g = 0; g < group; g++) thread.position[row++] = part.position() + size_t(token);
      }
    }
    const kv::PageLayout& layout = *shape->layout;
    return {block.rows, layout.head_dim, layout.k_format, layout.v_format, window, q, thread.position.data()};
  }

  // Who walks tile t, in order of rows; neighbours that share the page walk it as one.
  void visit(size_t tile, const Block& block, int kv_head, std::vector<TileVisit>& visits) const {
    const kv::PageLayout& layout = *shape->layout;
    const size_t first_key = tile * kTileKeys, per_page = size_t(layout.tiles_per_page());
    const size_t before = visits.size();
    for (const Part& part : block.parts) {
      // Tokens at positions first_key .. first_key + 63 + window - 1 see something of it.
      const size_t begin = std::max(part.position(), first_key);
      size_t end = part.position() + size_t(part.tokens);
      if (window != 0) end = std::min(end, first_key + kTileKeys - 1 + window);
      if (begin >= end) continue;
      const int row = part.row + int(begin - part.position()) * group;
      const int row_end = part.row + int(end - part.position()) * group;
      const kv::Tile t = layout.tile(part.segment->pages[tile / per_page], kv_head, int(tile % per_page));
      if (visits.size() > before && visits.back().k == t.k && visits.back().row_end == row) {
        visits.back().row_end = row_end;
      } else {
        visits.push_back({t.k, t.v, t.k_scale, t.v_scale, first_key, row, row_end});
      }
    }
  }

  void attend_span(Thread& thread, const AttentionRows& rows, const Block& block, int kv_head, size_t span,
                   const SpanState& state) const {
    thread.visits.clear();
    size_t tile = std::max(span * kSpanTiles, block.first_tile);
    const size_t end = std::min((span + 1) * kSpanTiles, block.last_tile + 1);
    for (; tile < end; tile++) visit(tile, block, kv_head, thread.visits);
    const size_t count = thread.visits.size();
    if (tile <= block.last_tile) visit(tile, block, kv_head, thread.visits);
    kernels.attention.span(rows, thread.visits.data(), int(count), thread.visits.size() > count, state,
                           thread.scratch.reserve(attention_scratch_floats(rows.rows, rows.head_dim)));
  }

  MergedState empty(Thread& thread, const Block& block) const {
    const MergedState total =
        merged_state(thread.merged.reserve(state_floats(block.rows, head_dim())), block.rows, head_dim());
    std::fill_n(total.o, size_t(block.rows) * size_t(head_dim()), 0.f);
    std::fill_n(total.m, block.rows, -std::numeric_limits<float>::infinity());
    std::fill_n(total.l, block.rows, 0.f);
    return total;
  }

  void finish(const Block& block, int kv_head, const MergedState& total) const {
    const size_t columns = size_t(head_dim());
    size_t row = 0;
    for (const Part& part : block.parts) {
      for (int token = 0; token < part.tokens; token++) {
        const size_t head = size_t(part.first_token + token) * size_t(shape->heads) + size_t(kv_head * group);
        for (size_t g = 0; g < size_t(group); g++, row++)
          kernels.attention.finish(head_dim(), total.o + row * columns, total.l[row],
                                   part.segment->out + (head + g) * columns);
      }
    }
  }

  // One thread takes a block from its first span to its last.
  void walk(Thread& thread, const Block& block, int kv_head) const {
    const AttentionRows rows = gather(thread, block, kv_head);
    const SpanState state =
        span_state(thread.span.reserve(state_floats(block.rows, head_dim())), block.rows, head_dim());
    const MergedState total = empty(thread, block);
    for (size_t i = 0; i < block.spans(); i++) {
      attend_span(thread, rows, block, kv_head, block.first_span() + i, state);
      kernels.attention.merge(block.rows, head_dim(), state, total);
    }
    finish(block, kv_head, total);
  }
};

Attention::Attention(const Kernels& kernels, ThreadPool& pool)
    : state_(new State{
          kernels, pool, std::vector<State::Thread>(size_t(pool.size())), {}, nullptr, {}, 1, 0, 1}) {}
Attention::~Attention() = default;

void Attention::run(const AttentionShape& shape, std::span<const AttentionSegment> segments) {
  State& s = *state_;
  const kv::PageLayout& layout = *shape.layout;
  const int head_dim = layout.head_dim, kv_heads = layout.kv_heads;
  if (head_dim != 64 && head_dim != 128 && head_dim != 256) {
    throw Error(ErrorKind::usage,
                "attention heads of size " + std::to_string(head_dim) + " are not supported",
                "use a model with head size 64, 128 or 256");
  }
  if (kv_heads < 1 || shape.heads < 1 || shape.heads % kv_heads != 0) {
    throw Error(
        ErrorKind::usage,
        std::to_string(shape.heads) + " query heads cannot share " + std::to_string(kv_heads) + " KV heads",
        "the number of query heads must be a multiple of the number of KV heads");
  }
  s.shape = &shape;
  s.group = shape.heads / kv_heads;
  s.window = size_t(shape.window);
  s.factor = float(1.4426950408889634 *
                   (shape.score_scale > 0 ? shape.score_scale : 1 / std::sqrt(double(head_dim))));

  size_t rows = 0;
  for (const AttentionSegment& segment : segments) rows += size_t(segment.tokens) * size_t(s.group);
  if (rows == 0) return;
  const size_t wanted = size_t(s.pool.size()) * kPiecesPerThread;
  const size_t even = (rows * size_t(kv_heads) + wanted - 1) / wanted;
  s.blocks = cut_blocks(segments, s.group, s.window, int(std::clamp<size_t>(even, kLeastRows, kMostRows)));

  const int pieces = int(s.blocks.size()) * kv_heads;
  // Piece i: KV head i / blocks, block i % blocks; later blocks see more, so they are handed out first.
  const auto block_of = [&](int piece) { return s.blocks.size() - 1 - size_t(piece) % s.blocks.size(); };
  const auto head_of = [&](int piece) { return piece / int(s.blocks.size()); };

  struct Slot {
    int piece;
    size_t span;  // counted from the block's first
    size_t at;    // of its state in `spans`
  };
  std::vector<Slot> slots;
  size_t floats = 0;
  for (int piece = 0; piece < pieces; piece++) {
    const Block& block = s.blocks[block_of(piece)];
    for (size_t span = 0; span < block.spans(); span++) {
      slots.push_back({piece, span, floats});
      floats += round_up(state_floats(block.rows, head_dim), kLanes);
    }
  }
  const bool divide = s.pool.size() > 1 && size_t(pieces) < wanted && slots.size() > size_t(pieces) &&
                      floats * sizeof(float) <= kSpanBytes;
  if (!divide) {
    s.pool.run(pieces, [&](int piece, int thread) {
      s.walk(s.threads[size_t(thread)], s.blocks[block_of(piece)], head_of(piece));
    });
    return;
  }

  float* states = s.spans.reserve(floats);
  s.pool.run(int(slots.size()), [&](int i, int index) {
    const Slot& slot = slots[size_t(i)];
    const Block& block = s.blocks[block_of(slot.piece)];
    State::Thread& thread = s.threads[size_t(index)];
    const AttentionRows gathered = s.gather(thread, block, head_of(slot.piece));
    s.attend_span(thread, gathered, block, head_of(slot.piece), block.first_span() + slot.span,
                  span_state(states + slot.at, block.rows, head_dim));
  });
  s.pool.run(pieces, [&](int piece, int index) {
    const Block& block = s.blocks[block_of(piece)];
    const MergedState total = s.empty(s.threads[size_t(index)], block);
    for (const Slot& slot : slots) {
      if (slot.piece == piece)
        s.kernels.attention.merge(block.rows, head_dim, span_state(states + slot.at, block.rows, head_dim),
                                  total);
    }
    s.finish(block, head_of(piece), total);
  });
}

}  // namespace kveval::cpu
