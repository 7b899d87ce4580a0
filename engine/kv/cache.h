// The paged KV cache: pages of 64, 128 or 256 tokens, shared between sequences by reference count.
//
// One page holds one layer's codes of all its KV heads for page_tokens consecutive positions, as tiles of 64
// positions: keys [head_dim][64], values [64][head_dim] (attention's lanes run over keys, then over
// dimensions), each followed by its scales. Tile i of a sequence always starts at position 64 i, whatever was
// forked or cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/kv/codec.h"
#include "engine/kv/codec_kernels.h"
#include "engine/profile.h"

namespace kveval::kv {

inline constexpr int kTileTokens = 64;

// One KV head's codes for 64 positions. Unwritten values are zero codes; unwritten keys are never used
// unmasked.
struct Tile {
  const uint8_t* k;      // [head_dim][64] codes
  const uint8_t* v;      // [64][head_dim] codes
  const float* k_scale;  // [64], null when the part has no scale
  const float* v_scale;  // [64], null when the part has no scale
};

struct LayerShape {
  int kv_heads = 1;
  int head_dim = 64;  // a multiple of 16
  int window = 0;  // 0: attends to everything before it; else to the last `window` positions, itself included
};

// Where things lie inside a page of one layer: head after head, each head's tiles in order, each tile as key
// codes, key scales, value codes, value scales. Every part starts on a multiple of 64 bytes.
struct PageLayout {
  int kv_heads = 0;
  int head_dim = 0;
  int page_tokens = 0;
  Format k_format{}, v_format{};
  ScaleAxis k_axis{}, v_axis{};
  // For static axes: the layer's scale, 64 times over, so that a tile reads like any other. Owned by
  // the cache.
  const float* k_static = nullptr;
  const float* v_static = nullptr;
  size_t k_scales_at = 0, v_at = 0, v_scales_at = 0;  // byte offsets inside a tile
  size_t tile_bytes = 0;
  size_t page_bytes = 0;  // codes and scales, every byte that grows with the context

  int tiles_per_page() const { return page_tokens / kTileTokens; }
  size_t tile_at(int kv_head, int tile_in_page) const {
    return (size_t(kv_head) * size_t(tiles_per_page()) + size_t(tile_in_page)) * tile_bytes;
  }
  Tile tile(const uint8_t* page, int kv_head, int tile_in_page) const;
};

// The layout of layer `layer` under `profile`, static scales left null; `of_skipped` is the 16-bit format of
// skipped layers. Throws Error{usage} for a shape or page size the cache does not have.
PageLayout page_layout(const LayerShape& shape, const Profile& profile, int layer, int page_tokens,
                       Format of_skipped = Format::fp16);

class Cache;
class PagePool;
struct Page;

// A sequence's page table. Movable; dropping it releases its share of the pages. Not copyable: fork() says
// what it costs. Its cache must outlive it.
class Sequence {
 public:
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence();

  size_t length() const { return length_; }  // positions written (or reserved by extend)
  // Base addresses of a layer's pages by page index; null where a window has moved on. Valid until the
  // sequence is extended, truncated or dropped.
  std::span<const uint8_t* const> pages(int layer) const { return tables_[size_t(layer)].codes; }
  // [layer][kv_head][part: 0 keys, 1 values] flattened in that order; since creation or fork.
  std::span<const CacheDiagnostic> diagnostics() const { return diagnostics_; }

 private:
  friend class Cache;
  struct Table {
    std::vector<Page*> pages;           // null where a window has moved on
    std::vector<const uint8_t*> codes;  // the pages' addresses, what pages() shows
    size_t released = 0;                // leading pages a window has moved past
  };
  Sequence() = default;
  void drop();

  Cache* cache_ = nullptr;
  size_t length_ = 0;
  std::vector<Table> tables_;  // [layer]
  std::vector<CacheDiagnostic> diagnostics_;
};

class Cache {
 public:
  // page_tokens: 64, 128 or 256. `encode` is the SIMD level that writes; every level gives the same bits.
  // Throws Error{usage} for a profile whose static scales are missing, not one per layer or not positive, or
  // that skips a layer the model does not have.
  Cache(std::span<const LayerShape> layers, const Profile& profile, int page_tokens,
        EncodeRow encode = scalar::encode_row, Format of_skipped = Format::fp16);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  Sequence create();
  Sequence fork(const Sequence& parent);  // shares every page; O(pages) pointers, no codes copied

  // Forgets the positions from `length` on. Copies the rows it keeps of a last page that is shared, so that
  // no other sequence's rows are ever read as this one's unwritten ones. Throws Error{run} for a length
  // beyond the sequence or before what a window has released, and when memory runs out; the sequence is then
  // unchanged.
  void truncate(Sequence& sequence, size_t length);

  // Makes room for `tokens` more positions in every layer: allocates pages, copies a shared partial page
  // first (only its written rows). Then write() each layer. Throws Error{run} when memory runs out; the
  // sequence is then unchanged.
  void extend(Sequence& sequence, size_t tokens);

  // Encodes rows of one KV head at positions first .. first + tokens, which extend() reserved and no fork
  // shares. `k` and `v` point at the head's first row; rows are `stride` floats apart. Distinct (layer, head)
  // pairs may be written concurrently, and so may distinct sequences. Diagnostics sum in the order of the
  // calls: write each head's rows in token order.
  void write(Sequence& sequence, int layer, int kv_head, size_t first, size_t tokens, const float* k,
             const float* v, size_t stride);

  // Windowed layers drop their reference to pages that no position >= next_position can see.
  void release_behind_window(Sequence& sequence, size_t next_position);

  // A sequence of this cache whose codes are those of `source` (another cache over the same layers and page
  // size) decoded and encoded again under this cache's profile. Throws Error{run} when memory runs out.
  Sequence transcode(const Sequence& source);

  const PageLayout& layout(int layer) const { return layers_[size_t(layer)].layout; }
  const Profile& profile() const { return profile_; }
  size_t bytes() const { return bytes_; }            // live pages, each counted once however often shared
  size_t peak_bytes() const { return peak_bytes_; }  // the most bytes() has been

 private:
  friend class Sequence;
  struct StaticScales;
  struct Layer {
    LayerShape shape;
    PageLayout layout;
    PagePool* pool;
    std::unique_ptr<StaticScales> static_scales;
    size_t first_diagnostic;  // of this layer in Sequence::diagnostics()
  };
  struct Slot {  // an entry of a sequence's page table
    size_t layer, index;
    Page* fresh = nullptr;
  };

  PagePool* pool_of(size_t page_bytes);
  Page* take(const Layer& layer);
  void drop(Page* page);
  void renew(Sequence& sequence, std::vector<Slot> slots, size_t length);
  void encode_row(const Layer& layer, uint8_t* tile, size_t row, const float* k, const float* v,
                  CacheDiagnostic* diagnostics) const;

  Profile profile_;
  EncodeRow encode_;
  size_t page_tokens_;
  std::vector<Layer> layers_;
  std::vector<std::unique_ptr<PagePool>> pools_;  // one per page size
  std::vector<CacheDiagnostic> empty_diagnostics_;
  size_t bytes_ = 0, peak_bytes_ = 0;
};

// What one more token costs, summed over layers, codes and scales: exact for a full page.
size_t bytes_per_token(std::span<const LayerShape> layers, const Profile& profile);

// Peak bytes of one sequence of `tokens` fed in chunks of `chunk`, its windowed layers released behind each:
// what Cache::peak_bytes says afterwards.
size_t bytes_for(std::span<const LayerShape> layers, const Profile& profile, int page_tokens, size_t tokens,
                 size_t chunk);

}  // namespace kveval::kv
