#include <algorithm>

#include <fmt/format.h>

#include "engine/kv/cache.h"

namespace kveval::kv {
namespace {

CachePart part_of(const CachePart& part, const Profile& profile, int layer, Format of_skipped) {
  const auto& skip = profile.skip_layers;
  const bool skipped = std::find(skip.begin(), skip.end(), layer) != skip.end();
  return skipped ? CachePart{of_skipped, ScaleAxis::none, {}} : part;
}

size_t scale_bytes(ScaleAxis axis) {
  return axis == ScaleAxis::token_head ? size_t(kTileTokens) * sizeof(float) : 0;
}

const float* scales(ScaleAxis axis, const uint8_t* in_tile, const float* static_scales) {
  switch (axis) {
    case ScaleAxis::none: return nullptr;
    case ScaleAxis::tensor:
    case ScaleAxis::checkpoint: return static_scales;
    case ScaleAxis::token_head: return reinterpret_cast<const float*>(in_tile);
  }
  return nullptr;
}

}  // namespace

PageLayout page_layout(const LayerShape& shape, const Profile& profile, int layer, int page_tokens,
                       Format of_skipped) {
  if (page_tokens != 64 && page_tokens != 128 && page_tokens != 256) {
    throw Error{ErrorKind::usage,
                fmt::format("a cache page holds 64, 128 or 256 tokens, not {}", page_tokens)};
  }
  if (shape.kv_heads < 1 || shape.head_dim < 16 || shape.head_dim % 16 != 0 || shape.window < 0) {
    throw Error{
        ErrorKind::usage,
        fmt::format("layer {} has {} KV heads of size {} and window {}: the cache needs at least one head, a "
                    "head size that is a multiple of 16 and no negative window",
                    layer, shape.kv_heads, shape.head_dim, shape.window)};
  }
  const CachePart k = part_of(profile.k, profile, layer, of_skipped);
  const CachePart v = part_of(profile.v, profile, layer, of_skipped);
  PageLayout layout;
  layout.kv_heads = shape.kv_heads;
  layout.head_dim = shape.head_dim;
  layout.page_tokens = page_tokens;
  layout.k_format = k.format;
  layout.v_format = v.format;
  layout.k_axis = k.scale;
  layout.v_axis = v.scale;
  const size_t elements = size_t(kTileTokens) * size_t(shape.head_dim);
  layout.k_scales_at = elements * code_bytes(k.format);
  layout.v_at = layout.k_scales_at + scale_bytes(k.scale);
  layout.v_scales_at = layout.v_at + elements * code_bytes(v.format);
  layout.tile_bytes = layout.v_scales_at + scale_bytes(v.scale);
  layout.page_bytes = layout.tile_bytes * size_t(layout.tiles_per_page()) * size_t(shape.kv_heads);
  return layout;
}

Tile PageLayout::tile(const uint8_t* page, int kv_head, int tile_in_page) const {
  const uint8_t* at = page + tile_at(kv_head, tile_in_page);
  return {at, at + v_at, scales(k_axis, at + k_scales_at, k_static),
          scales(v_axis, at + v_scales_at, v_static)};
}

}  // namespace kveval::kv
