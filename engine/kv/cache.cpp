#include "engine/kv/cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "engine/error.h"
#include "engine/kv/page_pool.h"

namespace kveval::kv {
namespace {

constexpr size_t kTile = kTileTokens;

[[noreturn]] void out_of_memory(size_t bytes) {
  throw Error{
      ErrorKind::run,
      fmt::format("out of memory: the KV cache cannot grow beyond {:.1f} MiB", double(bytes) / (1 << 20)),
      "use a shorter length, fewer branches or a smaller cache format"};
}

// A caller that breaks the cache's rules would read or overwrite another sequence's rows: stop before that.
[[noreturn]] void misuse(const std::string& what) {
  throw Error{ErrorKind::run, "KV cache: " + what, "this is a defect of kveval: please report it"};
}

size_t pages_for(size_t tokens, size_t page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

// Pages that no position >= next can see: those wholly before next's window.
size_t pages_behind(const LayerShape& shape, size_t next, size_t page_tokens) {
  const size_t window = size_t(shape.window);
  return window > 0 && next + 1 > window ? (next + 1 - window) / page_tokens : 0;
}

// Lane-wise, so that the compiler can keep 16 comparisons in flight; a maximum has no order. NaN is left out.
float absolute_max(const float* x, int n) {
  float lanes[16] = {};
  for (int i = 0; i < n; i += 16) {
    for (int j = 0; j < 16; j++) lanes[j] = std::fabs(x[i + j]) > lanes[j] ? std::fabs(x[i + j]) : lanes[j];
  }
  return *std::max_element(lanes, lanes + 16);
}

// The first `rows` positions of a page, into a page of zeros.
void copy_rows(const PageLayout& layout, const uint8_t* from, uint8_t* to, size_t rows) {
  const size_t k_bytes = code_bytes(layout.k_format), v_bytes = code_bytes(layout.v_format);
  const size_t head_dim = size_t(layout.head_dim);
  for (int head = 0; head < layout.kv_heads; head++) {
    for (size_t tile = 0; tile * kTile < rows; tile++) {
      const size_t n = std::min(kTile, rows - tile * kTile);
      const size_t at = layout.tile_at(head, int(tile));
      const auto copy = [&](size_t offset, size_t bytes) {
        std::memcpy(to + at + offset, from + at + offset, bytes);
      };
      for (size_t d = 0; d < head_dim; d++) copy(d * kTile * k_bytes, n * k_bytes);
      copy(layout.v_at, n * head_dim * v_bytes);
      if (layout.k_axis == ScaleAxis::token_head) copy(layout.k_scales_at, n * sizeof(float));
      if (layout.v_axis == ScaleAxis::token_head) copy(layout.v_scales_at, n * sizeof(float));
    }
  }
}

// Zero value codes and scales from position `rows` on; keys there are never used unmasked.
void clear_values(const PageLayout& layout, uint8_t* page, size_t rows) {
  const size_t row_bytes = size_t(layout.head_dim) * code_bytes(layout.v_format);
  for (int head = 0; head < layout.kv_heads; head++) {
    for (size_t tile = rows / kTile; tile < size_t(layout.tiles_per_page()); tile++) {
      const size_t first = rows > tile * kTile ? rows - tile * kTile : 0;
      uint8_t* at = page + layout.tile_at(head, int(tile));
      std::memset(at + layout.v_at + first * row_bytes, 0, (kTile - first) * row_bytes);
      if (layout.v_axis == ScaleAxis::token_head) {
        std::memset(at + layout.v_scales_at + first * sizeof(float), 0, (kTile - first) * sizeof(float));
      }
    }
  }
}

void check_scales(const CachePart& part, const char* name, const Profile& profile, size_t layers) {
  if (!is_static(part.scale)) return;
  const auto refuse = [&](const std::string& why) {
    throw Error{ErrorKind::usage, fmt::format("the {} of profile '{}' {}", name, canonical(profile), why),
                "resolve the profile with this model first"};
  };
  if (part.static_scales.empty()) refuse("have no static scales yet");
  if (part.static_scales.size() != layers) {
    refuse(fmt::format("have {} static scales, the model has {} layers", part.static_scales.size(), layers));
  }
  for (size_t layer = 0; layer < layers; layer++) {
    const float scale = part.static_scales[layer];
    if (!(scale > 0) || !std::isfinite(scale))
      refuse(fmt::format("have the static scale {} in layer {}", scale, layer));
  }
}

}  // namespace

struct Cache::StaticScales {
  alignas(64) float k[kTile];
  alignas(64) float v[kTile];
};

// ---- Sequence

Sequence::Sequence(Sequence&& other) noexcept
    : cache_(std::exchange(other.cache_, nullptr)),
      length_(std::exchange(other.length_, 0)),
      tables_(std::move(other.tables_)),
      diagnostics_(std::move(other.diagnostics_)) {}

Sequence& Sequence::operator=(Sequence&& other) noexcept {
  if (this == &other) return *this;
  drop();
  cache_ = std::exchange(other.cache_, nullptr);
  length_ = std::exchange(other.length_, 0);
  tables_ = std::move(other.tables_);
  diagnostics_ = std::move(other.diagnostics_);
  return *this;
}

Sequence::~Sequence() { drop(); }

void Sequence::drop() {
  if (cache_ == nullptr) return;
  for (Table& table : tables_) {
    for (Page* page : table.pages) {
      if (page != nullptr) cache_->drop(page);
    }
  }
  tables_.clear();
  cache_ = nullptr;
}

// ---- Cache

Cache::Cache(std::span<const LayerShape> layers, const Profile& profile, int page_tokens, EncodeRow encode,
             Format of_skipped)
    : profile_(profile), encode_(encode), page_tokens_(size_t(page_tokens)) {
  if (!profile.skip_layers.empty() && size_t(profile.skip_layers.back()) >= layers.size()) {
    throw Error{ErrorKind::usage,
                fmt::format("profile '{}' skips layer {}, but the model has {} layers", canonical(profile),
                            profile.skip_layers.back(), layers.size()),
                "layers count from 0"};
  }
  check_scales(profile.k, "keys", profile, layers.size());
  check_scales(profile.v, "values", profile, layers.size());
  for (size_t i = 0; i < layers.size(); i++) {
    Layer layer{layers[i], page_layout(layers[i], profile, int(i), page_tokens, of_skipped), nullptr, nullptr,
                empty_diagnostics_.size()};
    if (is_static(layer.layout.k_axis) || is_static(layer.layout.v_axis)) {
      layer.static_scales = std::make_unique<StaticScales>();
      if (is_static(layer.layout.k_axis)) {
        std::fill_n(layer.static_scales->k, kTile, profile.k.static_scales[i]);
        layer.layout.k_static = layer.static_scales->k;
      }
      if (is_static(layer.layout.v_axis)) {
        std::fill_n(layer.static_scales->v, kTile, profile.v.static_scales[i]);
        layer.layout.v_static = layer.static_scales->v;
      }
    }
    layer.pool = pool_of(layer.layout.page_bytes);
    for (int head = 0; head < layers[i].kv_heads; head++) {
      for (const bool keys : {true, false}) {
        CacheDiagnostic diagnostic;
        diagnostic.layer = int(i);
        diagnostic.kv_head = head;
        diagnostic.keys = keys;
        empty_diagnostics_.push_back(diagnostic);
      }
    }
    layers_.push_back(std::move(layer));
  }
}

Cache::~Cache() = default;

PagePool* Cache::pool_of(size_t page_bytes) {
  for (const auto& pool : pools_) {
    if (pool->page_bytes() == page_bytes) return pool.get();
  }
  pools_.push_back(std::make_unique<PagePool>(page_bytes));
  return pools_.back().get();
}

Page* Cache::take(const Layer& layer) {
  Page* page = layer.pool->take();
  bytes_ += layer.layout.page_bytes;
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  return page;
}

void Cache::drop(Page* page) {
  if (--page->references > 0) return;
  bytes_ -= page->pool->page_bytes();
  page->pool->give_back(page);
}

Sequence Cache::create() {
  Sequence sequence;
  sequence.cache_ = this;
  sequence.tables_.resize(layers_.size());
  sequence.diagnostics_ = empty_diagnostics_;
  return sequence;
}

Sequence Cache::fork(const Sequence& parent) {
  if (parent.cache_ != this) misuse("a sequence of another cache is forked");
  Sequence sequence = create();
  std::vector<Sequence::Table> tables = parent.tables_;
  for (const Sequence::Table& table : tables) {
    for (Page* page : table.pages) {
      if (page != nullptr) page->references++;
    }
  }
  sequence.tables_ = std::move(tables);
  sequence.length_ = parent.length_;
  return sequence;
}

// Puts a fresh page into every slot, with the rows below `length` of the page that was there, if any. All or
// nothing.
void Cache::renew(Sequence& sequence, std::vector<Slot> slots, size_t length) {
  try {
    for (Slot& slot : slots) {
      Sequence::Table& table = sequence.tables_[slot.layer];
      if (slot.index >= table.pages.size()) {
        table.pages.reserve(slot.index + 1);
        table.codes.reserve(slot.index + 1);
      }
      slot.fresh = take(layers_[slot.layer]);
    }
  } catch (const std::bad_alloc&) {
    const size_t reached = bytes_;
    for (const Slot& slot : slots) {
      if (slot.fresh != nullptr) drop(slot.fresh);
    }
    out_of_memory(reached);
  }
  for (const Slot& slot : slots) {
    Sequence::Table& table = sequence.tables_[slot.layer];
    if (slot.index >= table.pages.size()) {
      table.pages.resize(slot.index + 1, nullptr);
      table.codes.resize(slot.index + 1, nullptr);
    }
    if (Page* old = table.pages[slot.index]; old != nullptr) {
      copy_rows(layers_[slot.layer].layout, old->codes(), slot.fresh->codes(),
                length - slot.index * page_tokens_);
      drop(old);
    }
    table.pages[slot.index] = slot.fresh;
    table.codes[slot.index] = slot.fresh->codes();
  }
}

void Cache::extend(Sequence& sequence, size_t tokens) {
  if (sequence.cache_ != this) misuse("a sequence of another cache is extended");
  const size_t length = sequence.length_ + tokens;
  std::vector<Slot> slots;
  for (size_t layer = 0; layer < layers_.size() && tokens > 0; layer++) {
    const std::vector<Page*>& pages = sequence.tables_[layer].pages;
    for (size_t index = sequence.length_ / page_tokens_; index < pages_for(length, page_tokens_); index++) {
      const Page* page = index < pages.size() ? pages[index] : nullptr;
      if (page == nullptr || page->references > 1) slots.push_back({layer, index});
    }
  }
  renew(sequence, std::move(slots), sequence.length_);
  sequence.length_ = length;
}

void Cache::truncate(Sequence& sequence, size_t length) {
  if (sequence.cache_ != this) misuse("a sequence of another cache is truncated");
  if (length > sequence.length_) {
    misuse(fmt::format("a sequence of {} positions is truncated to {}", sequence.length_, length));
  }
  if (length == sequence.length_) return;
  const size_t partial = length / page_tokens_, count = pages_for(length, page_tokens_);
  std::vector<Slot> slots;
  for (size_t layer = 0; layer < layers_.size(); layer++) {
    const Sequence::Table& table = sequence.tables_[layer];
    if (table.released > std::min(count, pages_behind(layers_[layer].shape, length, page_tokens_))) {
      misuse(fmt::format("a sequence is truncated to {} positions, but layer {} has released {} of its pages",
                         length, layer, table.released));
    }
    if (partial < count && table.pages[partial]->references > 1) slots.push_back({layer, partial});
  }
  renew(sequence, std::move(slots), length);
  for (size_t layer = 0; layer < layers_.size(); layer++) {
    Sequence::Table& table = sequence.tables_[layer];
    if (partial < count) {
      clear_values(layers_[layer].layout, table.pages[partial]->codes(), length - partial * page_tokens_);
    }
    for (size_t index = count; index < table.pages.size(); index++) drop(table.pages[index]);
    table.pages.resize(count);
    table.codes.resize(count);
  }
  sequence.length_ = length;
}

void Cache::encode_row(const Layer& layer, uint8_t* tile, size_t row, const float* k, const float* v,
                       CacheDiagnostic* diagnostics) const {
  const PageLayout& layout = layer.layout;
  const auto encode_part = [&](const float* x, Format format, ScaleAxis axis, const float* static_scale,
                               uint8_t* scales, uint8_t* codes, size_t stride, CacheDiagnostic& diagnostic) {
    float scale = 1.0f;
    if (is_static(axis)) scale = *static_scale;
    if (axis == ScaleAxis::token_head) {
      scale = scale_for(format, absolute_max(x, layout.head_dim));
      std::memcpy(scales + row * sizeof(float), &scale, sizeof(float));
    }
    RowStats stats;
    encode_(format, x, layout.head_dim, scale, codes, stride, &stats);
    diagnostic.elements += uint64_t(layout.head_dim);
    diagnostic.clipped += stats.clipped;
    diagnostic.flushed += stats.flushed;
    diagnostic.absolute_max = std::max(diagnostic.absolute_max, stats.absolute_max);
    diagnostic.error_energy += double(stats.error_energy);
    diagnostic.energy += double(stats.energy);
  };
  const size_t k_bytes = code_bytes(layout.k_format), v_bytes = code_bytes(layout.v_format);
  encode_part(k, layout.k_format, layout.k_axis, layout.k_static, tile + layout.k_scales_at,
              tile + row * k_bytes, kTile, diagnostics[0]);
  encode_part(v, layout.v_format, layout.v_axis, layout.v_static, tile + layout.v_scales_at,
              tile + layout.v_at + row * size_t(layout.head_dim) * v_bytes, 1, diagnostics[1]);
}

void Cache::write(Sequence& sequence, int layer, int kv_head, size_t first, size_t tokens, const float* k,
                  const float* v, size_t stride) {
  const Layer& written = layers_[size_t(layer)];
  if (first + tokens > sequence.length_) {
    misuse(fmt::format("positions {} to {} are written, {} are reserved", first, first + tokens,
                       sequence.length_));
  }
  CacheDiagnostic* diagnostics = &sequence.diagnostics_[written.first_diagnostic + 2 * size_t(kv_head)];
  for (size_t position = first; position < first + tokens; position++, k += stride, v += stride) {
    const size_t row = position % page_tokens_;
    const Page* page = sequence.tables_[size_t(layer)].pages[position / page_tokens_];
    if (page == nullptr || page->references > 1) {
      misuse(
          fmt::format("position {} of layer {} is written, but it is shared or released", position, layer));
    }
    encode_row(written, page->codes() + written.layout.tile_at(kv_head, int(row / kTile)), row % kTile, k, v,
               diagnostics);
  }
}

void Cache::release_behind_window(Sequence& sequence, size_t next_position) {
  for (size_t layer = 0; layer < layers_.size(); layer++) {
    Sequence::Table& table = sequence.tables_[layer];
    // The page that extend() continues stays, whatever the window.
    const size_t behind = std::min(pages_behind(layers_[layer].shape, next_position, page_tokens_),
                                   sequence.length_ / page_tokens_);
    for (; table.released < behind; table.released++) {
      drop(std::exchange(table.pages[table.released], nullptr));
      table.codes[table.released] = nullptr;
    }
  }
}

Sequence Cache::transcode(const Sequence& source) {
  const Cache& from = *source.cache_;
  const auto same_shape = [](const Layer& a, const Layer& b) {
    return a.shape.kv_heads == b.shape.kv_heads && a.shape.head_dim == b.shape.head_dim &&
           a.shape.window == b.shape.window;
  };
  if (from.page_tokens_ != page_tokens_ ||
      !std::equal(layers_.begin(), layers_.end(), from.layers_.begin(), from.layers_.end(), same_shape)) {
    misuse("a sequence of another model's cache is transcoded");
  }
  Sequence sequence = create();
  std::vector<Slot> slots;
  for (size_t layer = 0; layer < layers_.size(); layer++) {
    const Sequence::Table& table = source.tables_[layer];
    sequence.tables_[layer].pages.resize(table.pages.size(), nullptr);
    sequence.tables_[layer].codes.resize(table.pages.size(), nullptr);
    for (size_t index = table.released; index < table.pages.size(); index++) slots.push_back({layer, index});
  }
  renew(sequence, std::move(slots), 0);
  sequence.length_ = source.length_;
  std::vector<float> k, v;
  for (size_t i = 0; i < layers_.size(); i++) {
    const Layer &layer = layers_[i], &old = from.layers_[i];
    const size_t n = size_t(layer.shape.head_dim);
    k.resize(n);
    v.resize(n);
    sequence.tables_[i].released = source.tables_[i].released;
    // Only what a later position can see: how much more a window's pages still hold depends on their size.
    const size_t window = size_t(layer.shape.window), next = source.length_ + 1;
    const size_t first_seen = window > 0 && next > window ? next - window : 0;
    for (int head = 0; head < layer.shape.kv_heads; head++) {
      for (size_t p = first_seen; p < source.length_; p++) {
        const size_t page = p / page_tokens_, row = p % kTile;
        const int tile_in_page = int(p % page_tokens_ / kTile);
        const Tile tile = old.layout.tile(source.tables_[i].codes[page], head, tile_in_page);
        scalar::decode_row(old.layout.k_format, tile.k + row * code_bytes(old.layout.k_format), kTile, int(n),
                           tile.k_scale ? tile.k_scale[row] : 1.0f, k.data());
        scalar::decode_row(old.layout.v_format, tile.v + row * n * code_bytes(old.layout.v_format), 1, int(n),
                           tile.v_scale ? tile.v_scale[row] : 1.0f, v.data());
        encode_row(layer, sequence.tables_[i].pages[page]->codes() + layer.layout.tile_at(head, tile_in_page),
                   row, k.data(), v.data(),
                   &sequence.diagnostics_[layer.first_diagnostic + 2 * size_t(head)]);
      }
    }
  }
  return sequence;
}

// ---- bytes

size_t bytes_per_token(std::span<const LayerShape> layers, const Profile& profile) {
  size_t bytes = 0;
  for (size_t i = 0; i < layers.size(); i++) {
    bytes += page_layout(layers[i], profile, int(i), kTileTokens).page_bytes / kTile;
  }
  return bytes;
}

size_t bytes_for(std::span<const LayerShape> layers, const Profile& profile, int page_tokens, size_t tokens,
                 size_t chunk) {
  std::vector<size_t> page_bytes;
  for (size_t i = 0; i < layers.size(); i++) {
    page_bytes.push_back(page_layout(layers[i], profile, int(i), page_tokens).page_bytes);
  }
  const size_t step = chunk > 0 ? chunk : tokens;
  size_t peak = 0;
  for (size_t fed = 0; fed < tokens; fed += step) {
    const size_t pages = pages_for(std::min(fed + step, tokens), size_t(page_tokens));
    size_t bytes = 0;
    for (size_t i = 0; i < layers.size(); i++) {
      bytes += (pages - pages_behind(layers[i], fed, size_t(page_tokens))) * page_bytes[i];
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace kveval::kv
