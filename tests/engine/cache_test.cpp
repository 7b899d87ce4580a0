// The paged cache against the naive model of cache_model.h, and its rules one by one.
#include "engine/kv/cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.h"
#include "engine/random.h"
#include "tests/engine/cache_model.h"

namespace kveval::kv {
namespace {

using testing::HasSubstr;

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
                  tile.v + (row % 64 * size_t(layout.head_dim) + d) * code_bytes(layout.v_format);
              const float scale = tile.v_scale ? tile.v_scale[row % 64] : 1.0f;
              ASSERT_EQ(decode(layout.v_format, code) * scale, 0.0f) << name << " row " << row;
            }
          }
        }
      }
      // The parent still reads its own.
      const PageLayout& layout = cache.layout(0);
      const Tile tile = layout.tile(pair.sequences[0].pages(0)[0], 0, 1);
      const float last = decode(layout.v_format, tile.v + 63 * 16 * code_bytes(layout.v_format));
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
    const size_t n = size_t(layout.head_dim), k_bytes = code_bytes(layout.k_format),
                 v_bytes = code_bytes(layout.v_format), page_tokens = size_t(layout.page_tokens);
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
      // A window of W shows the next position W - 1 of the rows before it; older ones are not encoded again.
      const size_t window = size_t(kLayers[layer].window);
      const size_t seen = window > 0 ? std::min(read.length, window - 1) : read.length;
      for (int head = 0; head < kLayers[layer].kv_heads; head++) {
        for (size_t p = 0; p < read.length; p++) {
          auto &k = model.k[layer][size_t(head)][p], &v = model.v[layer][size_t(head)][p];
          if (p < read.length - seen) {
            k.assign(size_t(n), 0.0f);
            v.assign(size_t(n), 0.0f);
            continue;
          }
          k = read_back(part_in(target.profile(), true, layer), layer, k.data(), n);
          v = read_back(part_in(target.profile(), false, layer), layer, v.data(), n);
        }
        elements.insert(elements.end(), 2, seen * size_t(n));
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
