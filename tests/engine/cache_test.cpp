// The paged cache against a naive model: a sequence is a list of rows, a page is a reference count.
#include "engine/kv/cache.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.h"
#include "engine/random.h"

namespace kveval::kv {
namespace {

using testing::HasSubstr;

const std::vector<LayerShape> kLayers{{2, 16, 0}, {1, 32, 100}, {3, 16, 1}};

constexpr const char* kProfiles[] = {"f32",
                                     "fp16",
                                     "bf16",
                                     "e4m3",
                                     "e5m2",
                                     "int8",
                                     "int8-tensor",
                                     "k=e4m3,v=fp16",
                                     "k=fp16,v=int8",
                                     "e4m3,scale=token-head,skip-layers=1",
                                     "k=int8,v=e5m2,k-scale=tensor"};

Profile resolved(const char* text, size_t layers = kLayers.size()) {
  Profile profile = parse_profile(text);
  for (CachePart* part : {&profile.k, &profile.v}) {
    if (part->scale != ScaleAxis::tensor) continue;
    for (size_t i = 0; i < layers; i++) part->static_scales.push_back(0.02f + 0.01f * float(i));
  }
  return profile;
}

CachePart part_in(const Profile& profile, bool keys, size_t layer) {
  const auto& skip = profile.skip_layers;
  if (std::count(skip.begin(), skip.end(), int(layer))) return {Format::fp16, ScaleAxis::none, {}};
  return keys ? profile.k : profile.v;
}

// ---- the model

// What reading a row back gives: encode and decode one value at a time, scales as the profile header says.
std::vector<float> read_back(const CachePart& part, size_t layer, const float* x, int n) {
  float scale = 1;
  if (part.scale == ScaleAxis::tensor) scale = part.static_scales[layer];
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

size_t model_page_bytes(const Profile& profile, size_t layer, size_t page_tokens) {
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
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// A random input row; every kind of value a cache may meet.
float any_value(Random& random) {
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
    const size_t k_bytes = bytes_per_element(layout.k_format), v_bytes = bytes_per_element(layout.v_format);
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

// ---- the tests

TEST(Cache, random_histories_equal_the_model) {
  Random random{41};
  for (const char* name : kProfiles) {
    for (const int page_tokens : {64, 128, 256}) {
      Pair pair{resolved(name), page_tokens};
      pair.create();
      for (int step = 0; step < 40; step++) {
        const size_t i = random.below(pair.sequences.size());
        const size_t length = pair.models[i].length;
        switch (random.below(8)) {
          case 0: pair.create(); break;
          case 1:
          case 2: pair.fork(i); break;
          case 3: {
            const size_t shortest = pair.shortest(i);
            pair.truncate(i, shortest + random.below(length - shortest + 1));
            break;
          }
          case 4: pair.release(i); break;
          case 5:
            if (pair.sequences.size() > 1) pair.drop(i);
            break;
          default:
            if (length < 600) pair.extend(i, random.below(random.below(2) ? 140 : 8), random);
        }
        ASSERT_EQ(pair.cache.bytes(), pair.model_bytes()) << name << " step " << step;
        ASSERT_GE(pair.cache.peak_bytes(), pair.cache.bytes());
        if (step % 4 == 3) pair.check(random.below(pair.sequences.size()));
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
      for (size_t i = 0; i < pair.sequences.size(); i++) pair.check(i);
      const size_t peak = pair.cache.peak_bytes();
      while (!pair.sequences.empty()) pair.drop(0);
      EXPECT_EQ(pair.cache.bytes(), 0u);
      EXPECT_EQ(pair.cache.peak_bytes(), peak);
    }
  }
}

// Parent rows behind the fork's length hold NaN: 0 * NaN must not reach the fork through an unwritten value.
TEST(Cache, a_truncated_fork_never_sees_the_parents_later_rows) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const char* name : kProfiles) {
    for (const size_t length : {70u, 64u, 100u, 127u}) {
      Pair pair{resolved(name), 128};
      Random random{43};
      pair.create();
      pair.extend(0, 70, random);
      Cache& cache = pair.cache;
      cache.extend(pair.sequences[0], 58);
      for (size_t layer = 0; layer < kLayers.size(); layer++) {
        const std::vector<float> rows(58 * 32, nan);
        for (int head = 0; head < kLayers[layer].kv_heads; head++) {
          cache.write(pair.sequences[0], int(layer), head, 70, 58, rows.data(), rows.data(), 32);
        }
      }
      Sequence fork = cache.fork(pair.sequences[0]);
      cache.truncate(fork, length);
      for (size_t layer = 0; layer < kLayers.size(); layer++) {
        const PageLayout& layout = cache.layout(int(layer));
        for (int head = 0; head < layout.kv_heads; head++) {
          for (size_t row = length; row < 128; row++) {
            if (fork.pages(int(layer)).size() * 128 <= row) continue;
            const Tile tile = layout.tile(fork.pages(int(layer))[0], head, int(row / 64));
            for (size_t d = 0; d < size_t(layout.head_dim); d++) {
              const uint8_t* code =
                  tile.v + (row % 64 * size_t(layout.head_dim) + d) * bytes_per_element(layout.v_format);
              const float scale = tile.v_scale ? tile.v_scale[row % 64] : 1.0f;
              ASSERT_EQ(decode(layout.v_format, code) * scale, 0.0f) << name << " row " << row;
            }
          }
        }
      }
      // The parent still reads its own.
      const PageLayout& layout = cache.layout(0);
      const Tile tile = layout.tile(pair.sequences[0].pages(0)[0], 0, 1);
      const float last = decode(layout.v_format, tile.v + 63 * 16 * bytes_per_element(layout.v_format));
      EXPECT_EQ(std::isnan(last), layout.v_format != Format::int8) << name;
    }
  }
}

std::vector<float> random_rows(Random& random, size_t count) {
  std::vector<float> rows(count);
  for (float& x : rows) x = float(random.normal()) * 3;
  return rows;
}

// The same rows for every history: [layer][head], 2 * kMost * head_dim floats, keys then values.
constexpr size_t kMost = 300;
using Rows = std::vector<std::vector<std::vector<float>>>;

Rows make_rows(uint64_t seed) {
  Random random{seed};
  Rows rows(kLayers.size());
  for (size_t layer = 0; layer < kLayers.size(); layer++) {
    for (int head = 0; head < kLayers[layer].kv_heads; head++) {
      rows[layer].push_back(random_rows(random, 2 * kMost * size_t(kLayers[layer].head_dim)));
    }
  }
  return rows;
}

void write_head(Cache& cache, Sequence& sequence, const Rows& rows, size_t layer, int head, size_t first,
                size_t tokens) {
  const size_t n = size_t(kLayers[layer].head_dim);
  const float* k = rows[layer][size_t(head)].data() + first * n;
  cache.write(sequence, int(layer), head, first, tokens, k, k + kMost * n, n);
}

void append(Cache& cache, Sequence& sequence, const Rows& rows, size_t tokens) {
  const size_t first = sequence.length();
  cache.extend(sequence, tokens);
  for (size_t layer = 0; layer < kLayers.size(); layer++) {
    for (int head = 0; head < kLayers[layer].kv_heads; head++) {
      write_head(cache, sequence, rows, layer, head, first, tokens);
    }
  }
}

// Every code and scale of every written row.
std::vector<uint8_t> all_bytes(const Cache& cache, const Sequence& sequence) {
  std::vector<uint8_t> bytes;
  const auto add = [&](const void* from, size_t count) {
    const uint8_t* at = static_cast<const uint8_t*>(from);
    bytes.insert(bytes.end(), at, at + count);
  };
  for (size_t layer = 0; layer < kLayers.size(); layer++) {
    const PageLayout& layout = cache.layout(int(layer));
    const size_t n = size_t(layout.head_dim), k_bytes = bytes_per_element(layout.k_format),
                 v_bytes = bytes_per_element(layout.v_format), page_tokens = size_t(layout.page_tokens);
    for (int head = 0; head < layout.kv_heads; head++) {
      for (size_t p = 0; p < sequence.length(); p++) {
        const Tile tile =
            layout.tile(sequence.pages(int(layer))[p / page_tokens], head, int(p % page_tokens / 64));
        const size_t row = p % 64;
        for (size_t d = 0; d < n; d++) add(tile.k + (d * 64 + row) * k_bytes, k_bytes);
        add(tile.v + row * n * v_bytes, n * v_bytes);
        if (tile.k_scale) add(&tile.k_scale[row], sizeof(float));
        if (tile.v_scale) add(&tile.v_scale[row], sizeof(float));
      }
    }
  }
  return bytes;
}

void expect_equal(std::span<const CacheDiagnostic> a, std::span<const CacheDiagnostic> b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++) {
    EXPECT_EQ(a[i].layer, b[i].layer);
    EXPECT_EQ(a[i].kv_head, b[i].kv_head);
    EXPECT_EQ(a[i].keys, b[i].keys);
    EXPECT_EQ(a[i].elements, b[i].elements);
    EXPECT_EQ(a[i].clipped, b[i].clipped);
    EXPECT_EQ(a[i].flushed, b[i].flushed);
    EXPECT_EQ(a[i].absolute_max, b[i].absolute_max);
    EXPECT_EQ(a[i].error_energy, b[i].error_energy);
    EXPECT_EQ(a[i].energy, b[i].energy);
  }
}

TEST(Cache, chunks_pages_and_forks_give_the_same_bits_and_diagnostics) {
  const Rows rows = make_rows(47);
  Random random{53};
  for (const char* name : kProfiles) {
    Cache straight_cache{kLayers, resolved(name), 64};
    Sequence straight = straight_cache.create();
    append(straight_cache, straight, rows, kMost);
    const std::vector<uint8_t> expected = all_bytes(straight_cache, straight);
    for (const int page_tokens : {64, 128, 256}) {
      Cache cache{kLayers, resolved(name), page_tokens};
      Sequence chunked = cache.create();
      while (chunked.length() < kMost) {
        append(cache, chunked, rows, std::min(kMost - chunked.length(), size_t(1 + random.below(90))));
      }
      EXPECT_EQ(all_bytes(cache, chunked), expected) << name;
      expect_equal(chunked.diagnostics(), straight.diagnostics());

      // A chain of forks: each continues where its parent stood, while the parent goes elsewhere.
      Sequence forked = cache.create();
      const Rows others = make_rows(59);
      while (forked.length() < kMost) {
        append(cache, forked, rows, std::min(kMost - forked.length(), size_t(1 + random.below(90))));
        Sequence child = cache.fork(forked);
        for (const CacheDiagnostic& diagnostic : child.diagnostics()) EXPECT_EQ(diagnostic.elements, 0u);
        append(cache, forked, others, std::min(kMost - forked.length(), size_t(1 + random.below(70))));
        forked = std::move(child);
      }
      EXPECT_EQ(all_bytes(cache, forked), expected) << name;
    }
  }
}

TEST(Cache, heads_may_be_written_at_once) {
  const Rows rows = make_rows(61);
  for (const char* name : {"fp16", "int8", "e4m3,scale=tensor"}) {
    Cache cache{kLayers, resolved(name), 64};
    Sequence serial = cache.create(), parallel = cache.create();
    append(cache, serial, rows, kMost);
    cache.extend(parallel, kMost);
    std::vector<std::thread> threads;
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      for (int head = 0; head < kLayers[layer].kv_heads; head++) {
        threads.emplace_back([&, layer, head] { write_head(cache, parallel, rows, layer, head, 0, kMost); });
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(all_bytes(cache, parallel), all_bytes(cache, serial)) << name;
    expect_equal(parallel.diagnostics(), serial.diagnostics());
  }
}

TEST(Cache, diagnostics_say_what_encoding_did) {
  const std::vector<LayerShape> one{{1, 16, 0}};
  Cache cache{one, parse_profile("k=e4m3,v=int8"), 64};
  Sequence sequence = cache.create();
  cache.extend(sequence, 2);
  std::vector<float> k(32, 1.0f), v(32, 0.0f);
  k[0] = -1000;     // clipped to -448
  k[1] = 464;       // rounds to 448 without saturation
  k[2] = 0x1p-11f;  // flushed
  k[3] = 0;         // a zero stays a zero: not flushed
  k[16] = 1.0625f;  // rounds to 1
  v[16] = 127;      // the second row's scale is 1
  v[17] = 0.25f;    // flushed
  v[18] = -1.5f;    // rounds to -2
  cache.write(sequence, 0, 0, 0, 2, k.data(), v.data(), 16);
  const CacheDiagnostic &keys = sequence.diagnostics()[0], &values = sequence.diagnostics()[1];
  EXPECT_TRUE(keys.keys);
  EXPECT_EQ(keys.elements, 32u);
  EXPECT_EQ(keys.clipped, 1u);
  EXPECT_EQ(keys.flushed, 1u);
  EXPECT_EQ(keys.absolute_max, 1000.0f);
  const double k_error = 552.0 * 552 + 16 * 16 + 0x1p-22 + 0.0625 * 0.0625;
  EXPECT_NEAR(keys.error_energy, k_error, 1e-6 * k_error);
  EXPECT_NEAR(keys.energy, 1e6 + 464 * 464 + 27 + 1.0625 * 1.0625, 1);
  EXPECT_FALSE(values.keys);
  EXPECT_EQ(values.clipped, 0u);
  EXPECT_EQ(values.flushed, 1u);
  EXPECT_EQ(values.absolute_max, 127.0f);
  EXPECT_DOUBLE_EQ(values.error_energy, 0.0625 + 0.25);
  EXPECT_DOUBLE_EQ(values.energy, 127 * 127 + 0.0625 + 2.25);
}

TEST(Cache, int8_scales_are_the_rows_maximum_over_127) {
  const std::vector<LayerShape> one{{1, 16, 0}};
  Cache cache{one, parse_profile("int8"), 64};
  Sequence sequence = cache.create();
  cache.extend(sequence, 3);
  std::vector<float> rows(48, 0.0f);
  rows[3] = -3.3f;
  rows[4] = 1.65f;       // 63.5 steps: a tie, or beside one
  rows[32] = 0x1p-140f;  // so small that its share would be no normal float
  cache.write(sequence, 0, 0, 0, 3, rows.data(), rows.data(), 16);
  const Tile tile = cache.layout(0).tile(sequence.pages(0)[0], 0, 0);
  EXPECT_EQ(tile.k_scale[0], 3.3f / 127.0f);
  EXPECT_EQ(tile.v_scale[0], 3.3f / 127.0f);
  EXPECT_EQ(int8_t(tile.v[3]), -127);
  EXPECT_EQ(int8_t(tile.v[4]), int8_t(std::nearbyint(1.65f / (3.3f / 127.0f))));
  EXPECT_EQ(tile.k_scale[1], std::numeric_limits<float>::min());  // a row of zeros
  for (size_t d = 0; d < 16; d++) EXPECT_EQ(tile.v[16 + d], 0);
  EXPECT_EQ(tile.k_scale[2], std::numeric_limits<float>::min());
  EXPECT_EQ(sequence.diagnostics()[0].clipped, 0u);
}

TEST(Cache, transcoding_equals_writing_the_decoded_rows) {
  Random random{67};
  std::vector<std::pair<const char*, const char*>> directions;  // the engine's own are those from fp16
  for (const char* name : kProfiles) directions.insert(directions.end(), {{"fp16", name}, {name, "f32"}});
  for (const auto& [from, name] : directions) {
    Pair source{resolved(from), 128};
    source.create();
    source.extend(0, 70, random);
    source.fork(0);
    source.extend(1, 330, random);
    source.release(1);
    Cache target{kLayers, resolved(name), 128};
    const Sequence transcoded = target.transcode(source.sequences[1]);

    const ModelSequence& read = source.models[1];
    ModelSequence model = read;
    std::vector<uint64_t> elements;
    size_t bytes = 0;
    for (size_t layer = 0; layer < kLayers.size(); layer++) {
      size_t released = 0;
      while (released < read.pages[layer].size() && !read.pages[layer][released]) released++;
      bytes += (read.pages[layer].size() - released) * model_page_bytes(target.profile(), layer, 128);
      const int n = kLayers[layer].head_dim;
      for (int head = 0; head < kLayers[layer].kv_heads; head++) {
        for (size_t p = 0; p < read.length; p++) {
          auto &k = model.k[layer][size_t(head)][p], &v = model.v[layer][size_t(head)][p];
          k = read_back(part_in(target.profile(), true, layer), layer, k.data(), n);
          v = read_back(part_in(target.profile(), false, layer), layer, v.data(), n);
        }
        const uint64_t count = (read.length - released * 128) * uint64_t(n);
        elements.insert(elements.end(), {count, count});
      }
    }
    Pair::check_sequence(target, transcoded, model);
    EXPECT_EQ(target.bytes(), bytes) << name;
    ASSERT_EQ(transcoded.diagnostics().size(), elements.size());
    for (size_t i = 0; i < elements.size(); i++) EXPECT_EQ(transcoded.diagnostics()[i].elements, elements[i]);
  }
}

TEST(Cache, a_transcoded_sequence_goes_on) {
  const Rows rows = make_rows(71);
  Cache fp16{kLayers, parse_profile("fp16"), 64}, int8{kLayers, parse_profile("int8"), 64};
  Sequence source = fp16.create();
  append(fp16, source, rows, 200);
  Sequence transcoded = int8.transcode(source);
  fp16.release_behind_window(source, source.length());
  append(int8, transcoded, rows, 50);
  int8.release_behind_window(transcoded, transcoded.length());
  EXPECT_EQ(transcoded.pages(1)[1], nullptr);
  Sequence again = int8.transcode(transcoded);
  append(int8, again, rows, 50);
  EXPECT_EQ(again.length(), 300u);
  int8.release_behind_window(again, again.length());
  EXPECT_EQ(again.pages(1)[2], nullptr);
  EXPECT_NE(again.pages(1)[3], nullptr);
}

TEST(Cache, bytes_are_exact_before_and_after) {
  Random random{73};
  for (const char* name : kProfiles) {
    const Profile profile = resolved(name);
    size_t per_token = 0;
    for (size_t layer = 0; layer < kLayers.size(); layer++) per_token += model_page_bytes(profile, layer, 1);
    EXPECT_EQ(bytes_per_token(kLayers, profile), per_token);
    for (int repeat = 0; repeat < 12; repeat++) {
      const int page_tokens = repeat % 3 == 0 ? 64 : repeat % 3 == 1 ? 128 : 256;
      const size_t tokens = random.below(900), chunk = 1 + random.below(300);
      Cache cache{kLayers, profile, page_tokens};
      Sequence sequence = cache.create();
      while (sequence.length() < tokens) {
        cache.extend(sequence, std::min(chunk, tokens - sequence.length()));
        cache.release_behind_window(sequence, sequence.length());
      }
      EXPECT_EQ(bytes_for(kLayers, profile, page_tokens, tokens, chunk), cache.peak_bytes())
          << name << " " << page_tokens << " " << tokens << " " << chunk;
    }
  }
  // A figure to hold on to: one layer, 8 heads of 128, fp16: 4,096 bytes a token.
  EXPECT_EQ(bytes_per_token(std::vector<LayerShape>{{8, 128, 0}}, parse_profile("fp16")), 4096u);
  EXPECT_EQ(bytes_per_token(std::vector<LayerShape>{{8, 128, 0}}, parse_profile("int8")), 2112u);
}

template <class Call>
std::string error_of(ErrorKind kind, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, kind);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

TEST(Cache, profiles_and_shapes_that_cannot_be_are_refused) {
  const auto build = [](const Profile& profile, int page_tokens, LayerShape shape = {1, 64, 0}) {
    return error_of(ErrorKind::usage, [&] {
      Cache cache(std::vector<LayerShape>{shape, shape}, profile, page_tokens);
    });
  };
  EXPECT_THAT(build(parse_profile("e4m3,skip-layers=0,2"), 64),
              HasSubstr("skips layer 2, but the model has 2 layers"));
  EXPECT_THAT(build(parse_profile("int8-tensor"), 64), HasSubstr("no static scales"));
  EXPECT_THAT(build(resolved("int8-tensor", 3), 64), HasSubstr("3 static scales, the model has 2 layers"));
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(), HUGE_VALF}) {
    Profile profile = resolved("int8-tensor", 2);
    profile.v.static_scales[1] = bad;
    EXPECT_THAT(build(profile, 64), HasSubstr("in layer 1"));
  }
  for (const int page_tokens : {0, 63, 96, 512, -64}) {
    EXPECT_THAT(build(parse_profile("fp16"), page_tokens), HasSubstr("64, 128 or 256"));
  }
  for (const LayerShape shape : {LayerShape{0, 64, 0}, {1, 8, 0}, {1, 72, 0}, {1, 64, -1}}) {
    EXPECT_THAT(build(parse_profile("fp16"), 64, shape), HasSubstr("layer 0"));
  }
}

TEST(Cache, misuse_is_stopped_before_it_touches_shared_rows) {
  const Rows rows = make_rows(79);
  Cache cache{kLayers, parse_profile("fp16"), 64}, other{kLayers, parse_profile("fp16"), 128};
  Sequence sequence = cache.create();
  append(cache, sequence, rows, 280);
  EXPECT_THAT(error_of(ErrorKind::run, [&] { write_head(cache, sequence, rows, 0, 0, 280, 1); }),
              HasSubstr("280 are reserved"));
  {
    Sequence fork = cache.fork(sequence);
    EXPECT_THAT(error_of(ErrorKind::run, [&] { write_head(cache, fork, rows, 0, 0, 279, 1); }),
                HasSubstr("shared"));
  }
  EXPECT_NO_THROW(write_head(cache, sequence, rows, 0, 0, 279, 1));
  EXPECT_THAT(error_of(ErrorKind::run, [&] { cache.truncate(sequence, 281); }),
              HasSubstr("truncated to 281"));
  cache.release_behind_window(sequence, 280);
  EXPECT_THAT(error_of(ErrorKind::run, [&] { cache.truncate(sequence, 100); }), HasSubstr("released"));
  EXPECT_EQ(sequence.length(), 280u);
  EXPECT_THAT(error_of(ErrorKind::run, [&] { other.fork(sequence); }), HasSubstr("another cache"));
  EXPECT_THAT(error_of(ErrorKind::run, [&] { other.extend(sequence, 1); }), HasSubstr("another cache"));
  EXPECT_THAT(error_of(ErrorKind::run, [&] { other.transcode(sequence); }), HasSubstr("another model"));
}

TEST(Cache, running_out_of_memory_leaves_the_sequence_as_it_was) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers end the program at an allocation this large";
#endif
  // The second layer's page would take 2^52 bytes: more than an address can name.
  const std::vector<LayerShape> layers{{1, 64, 0}, {1 << 14, 1 << 30, 0}};
  Cache cache{layers, parse_profile("fp16"), 64};
  Sequence sequence = cache.create();
  EXPECT_THAT(error_of(ErrorKind::run, [&] { cache.extend(sequence, 1); }), HasSubstr("out of memory"));
  EXPECT_EQ(sequence.length(), 0u);
  EXPECT_EQ(cache.bytes(), 0u);
}

}  // namespace
}  // namespace kveval::kv
