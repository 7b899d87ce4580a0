// A naive model of the paged cache for its tests: a sequence is a list of rows, a page is a reference count.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kv/cache.h"
#include "engine/random.h"

namespace kveval::kv {

inline const std::vector<LayerShape> kLayers{{2, 16, 0}, {1, 32, 100}, {3, 16, 1}};

inline constexpr const char* kProfiles[] = {"f32",
                                            "fp16",
                                            "bf16",
                                            "e4m3",
                                            "e5m2",
                                            "int8",
                                            "int8-tensor",
                                            "k=e4m3,v=fp16",
                                            "k=fp16,v=int8",
                                            "e4m3,scale=token-head,skip-layers=1",
                                            "k=int8,v=e5m2,k-scale=tensor",
                                            "e4m3,scale=checkpoint"};

inline Profile resolved(const char* text, size_t layers = kLayers.size()) {
  Profile profile = parse_profile(text);
  for (CachePart* part : {&profile.k, &profile.v}) {
    if (part->scale != ScaleAxis::tensor && part->scale != ScaleAxis::checkpoint) continue;
    for (size_t i = 0; i < layers; i++) part->static_scales.push_back(0.02f + 0.01f * float(i));
  }
  return profile;
}

inline CachePart part_in(const Profile& profile, bool keys, size_t layer) {
  const auto& skip = profile.skip_layers;
  if (std::count(skip.begin(), skip.end(), int(layer))) return {Format::fp16, ScaleAxis::none, {}};
  return keys ? profile.k : profile.v;
}

// What reading a row back gives: encode and decode one value at a time, scales as the profile header says.
inline std::vector<float> read_back(const CachePart& part, size_t layer, const float* x, int n) {
  float scale = 1;
  if (part.scale == ScaleAxis::tensor || part.scale == ScaleAxis::checkpoint)
    scale = part.static_scales[layer];
  if (part.scale == ScaleAxis::token_head) {
    float most = 0;
    for (int i = 0; i < n; i++) most = std::max(most, std::fabs(x[i]));
    const float largest_code = part.format == Format::int8   ? 127.0f
                               : part.format == Format::e4m3 ? 448.0f
                                                             : 57344.0f;
    scale = std::max(most / largest_code, std::numeric_limits<float>::min());
  }
  std::vector<float> result;
  for (int i = 0; i < n; i++) {
    uint8_t code[4];
    encode(part.format, x[i] / scale, code);
    result.push_back(decode(part.format, code) * scale);
  }
  return result;
}

struct ModelSequence {
  // What every head of a layer should give back, by position: [layer][head][position], keys and values.
  std::vector<std::vector<std::vector<std::vector<float>>>> k, v;
  std::vector<std::vector<std::shared_ptr<int>>> pages;  // [layer][page]; empty where a window has moved on
  size_t length = 0;

  ModelSequence() : k(kLayers.size()), v(kLayers.size()), pages(kLayers.size()) {
    for (size_t i = 0; i < kLayers.size(); i++) {
      k[i].resize(size_t(kLayers[i].kv_heads));
      v[i].resize(size_t(kLayers[i].kv_heads));
    }
  }
};

inline size_t model_page_bytes(const Profile& profile, size_t layer, size_t page_tokens) {
  size_t row = 0;
  for (const bool keys : {true, false}) {
    const CachePart part = part_in(profile, keys, layer);
    row +=
        size_t(kLayers[layer].head_dim) * (part.format == Format::f32                                   ? 4
                                           : part.format == Format::fp16 || part.format == Format::bf16 ? 2
                                                                                                        : 1);
    row += part.scale == ScaleAxis::token_head ? 4 : 0;
  }
  return row * page_tokens * size_t(kLayers[layer].kv_heads);
}

// The same bits, or both NaN.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// A random input row; every kind of value a cache may meet.
inline float any_value(Random& random) {
  switch (random.below(24)) {
    case 0: return 0.0f;
    case 1: return float(random.normal()) * 1e5f;
    case 2: return float(random.normal()) * 1e-8f;
    case 3: return random.below(20) ? 1.0f : std::numeric_limits<float>::quiet_NaN();
    default: return float(random.normal()) * 2;
  }
}

// One cache, its sequences and their models.
class Pair {
 public:
  Pair(const Profile& profile, int page_tokens)
      : profile_(profile), page_tokens_(size_t(page_tokens)), cache(kLayers, profile, page_tokens) {}

  void create() {
    sequences.push_back(cache.create());
    models.emplace_back();
  }

  void fork(size_t i) {
    sequences.push_back(cache.fork(sequences[i]));
    models.push_back(models[i]);
  }

  void drop(size_t i) {
    sequences.erase(sequences.begin() + std::ptrdiff_t(i));
    models.erase(models.begin() + std::ptrdiff_t(i));
  }

  void extend(size_t i, size_t tokens, Random& random) {
    ModelSequence& model = models[i];
    const size_t first = model.length;
    cache.extend(sequences[i], tokens);
    model.length += tokens;
    for (size_t layer = 0; layer < kLayers.size() && tokens > 0; layer++) {
      auto& pages = model.pages[layer];
      const size_t partial = first / page_tokens_;
      if (first % page_tokens_ != 0 && pages[partial].use_count() > 1)
        pages[partial] = std::make_shared<int>();
      while (pages.size() * page_tokens_ < model.length) pages.push_back(std::make_shared<int>());
    }
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      const int n = kLayers[layer].head_dim;
      for (int head = 0; head < kLayers[layer].kv_heads; head++) {
        const size_t stride = size_t(n) + random.below(3) * 16;
        std::vector<float> k(tokens * stride), v(tokens * stride);
        for (float& x : k) x = any_value(random);
        for (float& x : v) x = any_value(random);
        for (size_t t = 0; t < tokens; t++) {
          model.k[layer][size_t(head)].push_back(
              read_back(part_in(profile_, true, layer), layer, &k[t * stride], n));
          model.v[layer][size_t(head)].push_back(
              read_back(part_in(profile_, false, layer), layer, &v[t * stride], n));
        }
        for (size_t done = 0, cut; done < tokens; done += cut) {
          cut = std::min(tokens - done, size_t(1 + random.below(100)));
          cache.write(sequences[i], int(layer), head, first + done, cut, &k[done * stride], &v[done * stride],
                      stride);
        }
      }
    }
  }

  void truncate(size_t i, size_t length) {
    ModelSequence& model = models[i];
    cache.truncate(sequences[i], length);
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      for (auto* part : {&model.k[layer], &model.v[layer]}) {
        for (auto& rows : *part) rows.resize(length);
      }
      auto& pages = model.pages[layer];
      pages.resize((length + page_tokens_ - 1) / page_tokens_);
      if (length < model.length && length % page_tokens_ != 0 && pages.back().use_count() > 1) {
        pages.back() = std::make_shared<int>();
      }
    }
    model.length = length;
  }

  void release(size_t i) {
    ModelSequence& model = models[i];
    cache.release_behind_window(sequences[i], model.length);
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      for (size_t p = 0; p < model.pages[layer].size(); p++) {
        const size_t end = (p + 1) * page_tokens_;  // the page's last position is end - 1
        const bool seen =
            kLayers[layer].window == 0 || end - 1 + size_t(kLayers[layer].window) > model.length;
        if (!seen) model.pages[layer][p] = nullptr;
      }
    }
  }

  // The shortest length the windows still allow.
  size_t shortest(size_t i) const {
    size_t length = 0;
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      size_t released = 0;
      while (released < models[i].pages[layer].size() && !models[i].pages[layer][released]) released++;
      if (released > 0)
        length = std::max(length, released * page_tokens_ + size_t(kLayers[layer].window) - 1);
    }
    return length;
  }

  size_t model_bytes() const {
    std::map<const int*, size_t> live;
    for (const ModelSequence& model : models) {
      for (size_t layer = 0; layer < kLayers.size(); layer++) {
        for (const auto& page : model.pages[layer]) {
          if (page) live[page.get()] = model_page_bytes(profile_, layer, page_tokens_);
        }
      }
    }
    size_t bytes = 0;
    for (const auto& [page, size] : live) bytes += size;
    return bytes;
  }

  void check(size_t i) const { check_sequence(cache, sequences[i], models[i]); }

  static void check_sequence(const Cache& cache, const Sequence& sequence, const ModelSequence& model) {
    ASSERT_EQ(sequence.length(), model.length);
    size_t wrong = 0, tails = 0;
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      const PageLayout& layout = cache.layout(int(layer));
      const auto pages = sequence.pages(int(layer));
      ASSERT_EQ(pages.size(), model.pages[layer].size());
      for (size_t p = 0; p < pages.size(); p++) {
        ASSERT_EQ(pages[p] == nullptr, model.pages[layer][p] == nullptr)
            << "layer " << layer << " page " << p;
        if (pages[p] == nullptr) continue;
        ASSERT_EQ(reinterpret_cast<uintptr_t>(pages[p]) % 64, 0u);
        for (int head = 0; head < layout.kv_heads; head++) {
          for (int t = 0; t < layout.tiles_per_page(); t++) {
            const size_t first = p * size_t(layout.page_tokens) + size_t(t) * 64;
            check_tile(layout, layout.tile(pages[p], head, t), model.k[layer][size_t(head)],
                       model.v[layer][size_t(head)], first, &wrong, &tails);
          }
        }
      }
    }
    EXPECT_EQ(wrong, 0u) << "values that are not what was written, " << canonical(cache.profile());
    EXPECT_EQ(tails, 0u) << "unwritten values that are not zero, " << canonical(cache.profile());
  }

 private:
  static void check_tile(const PageLayout& layout, const Tile& tile, const std::vector<std::vector<float>>& k,
                         const std::vector<std::vector<float>>& v, size_t first, size_t* wrong,
                         size_t* tails) {
    const size_t n = size_t(layout.head_dim);
    const size_t k_bytes = code_bytes(layout.k_format), v_bytes = code_bytes(layout.v_format);
    ASSERT_EQ(tile.k_scale == nullptr, layout.k_axis == ScaleAxis::none);
    ASSERT_EQ(tile.v_scale == nullptr, layout.v_axis == ScaleAxis::none);
    for (size_t row = 0; row < 64; row++) {
      const float k_scale = tile.k_scale ? tile.k_scale[row] : 1.0f,
                  v_scale = tile.v_scale ? tile.v_scale[row] : 1.0f;
      for (size_t d = 0; d < n; d++) {
        const float value = decode(layout.v_format, tile.v + (row * n + d) * v_bytes) * v_scale;
        if (first + row >= v.size()) {
          *tails += std::bit_cast<uint32_t>(value) != 0;
          continue;
        }
        const float key = decode(layout.k_format, tile.k + (d * 64 + row) * k_bytes) * k_scale;
        *wrong += !same(key, k[first + row][d]);
        *wrong += !same(value, v[first + row][d]);
      }
    }
  }

  Profile profile_;
  size_t page_tokens_;

 public:
  Cache cache;
  std::vector<Sequence> sequences;
  std::vector<ModelSequence> models;
};

}  // namespace kveval::kv
