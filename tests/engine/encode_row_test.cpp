// Every SIMD level gives the codes and the statistics of the scalar one, bit for bit; the scalar one those of
// codec.h.
#include "engine/kv/codec_kernels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/kv/codec.h"
#include "engine/random.h"

namespace kveval::kv {
namespace {

constexpr Format kFormats[] = {Format::f32,  Format::fp16, Format::bf16,
                               Format::e4m3, Format::e5m2, Format::int8};

struct Level {
  const char* name;
  EncodeRow encode_row;
};

std::vector<Level> simd_levels() {
  std::vector<Level> levels;
  // Every CPU with AVX2 and FMA has F16C.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    levels.push_back({"avx2", avx2::encode_row});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    levels.push_back({"avx512", avx512::encode_row});
  }
  return levels;
}

// The same bits, or both NaN: which NaN an addition gives depends on the order of its operands.
bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) || std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

float any_float(Random& random) {
  static constexpr float kSpecial[] = {0.0f,
                                       -0.0f,
                                       448,
                                       464,
                                       465,
                                       57344,
                                       61440,
                                       65504,
                                       65520,
                                       127,
                                       127.5f,
                                       0.5f,
                                       2.5f,
                                       std::numeric_limits<float>::infinity(),
                                       std::numeric_limits<float>::quiet_NaN(),
                                       std::numeric_limits<float>::denorm_min(),
                                       std::numeric_limits<float>::max()};
  const float sign = random.below(2) ? 1.0f : -1.0f;
  switch (random.below(8)) {
    case 0: return sign * kSpecial[random.below(std::size(kSpecial))];
    case 1: return std::bit_cast<float>(uint32_t(random.next() >> 32));
    case 2: return float(random.normal()) * 1e-3f;
    default: return float(random.normal()) * 60;
  }
}

struct Result {
  std::vector<uint8_t> codes;
  RowStats stats;
};

Result run(EncodeRow encode_row, Format format, const std::vector<float>& x, float scale, size_t stride) {
  const size_t bytes = kv::code_bytes(format);
  Result result{std::vector<uint8_t>(x.size() * stride * bytes + bytes, 0xA5), {}};
  result.stats.clipped = 99;  // to be overwritten, not added to
  encode_row(format, x.data(), int(x.size()), scale, result.codes.data(), stride, &result.stats);
  return result;
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  ASSERT_EQ(a.codes, b.codes) << what;
  EXPECT_EQ(a.stats.clipped, b.stats.clipped) << what;
  EXPECT_EQ(a.stats.flushed, b.stats.flushed) << what;
  EXPECT_TRUE(same(a.stats.absolute_max, b.stats.absolute_max)) << what;
  EXPECT_TRUE(same(a.stats.error_energy, b.stats.error_energy)) << what;
  EXPECT_TRUE(same(a.stats.energy, b.stats.energy)) << what;
}

TEST(EncodeRow, simd_levels_equal_scalar) {
  Random random{17};
  for (const Level& level : simd_levels()) {
    for (const Format format : kFormats) {
      for (int repeat = 0; repeat < 400; repeat++) {
        std::vector<float> x(16 * (1 + random.below(16)));
        // Half of the rows without the wild values, which would leave only NaN and infinity to compare in the
        // sums.
        for (float& value : x) value = repeat % 2 ? any_float(random) : float(random.normal()) * 20;
        const float scale =
            repeat % 3 ? 1.0f : std::ldexp(float(random.uniform()) + 0.5f, int(random.below(20)) - 10);
        const size_t stride = repeat % 5 < 2 ? 1 : (repeat % 5 == 2 ? 3 : 64);
        expect_same(run(level.encode_row, format, x, scale, stride),
                    run(scalar::encode_row, format, x, scale, stride),
                    std::string{level.name} + " " + name_of(format));
      }
    }
  }
}

// Every half (also as tie, and one unit beside it) and every bf16 through every level and format.
TEST(EncodeRow, simd_levels_equal_scalar_on_every_boundary) {
  std::vector<float> x;
  for (uint32_t code = 0; code < 65536; code++) {
    x.push_back(decode_fp16(uint16_t(code)));
    x.push_back(decode_bf16(uint16_t(code)));
    const uint32_t tie = (code << 16) | 0x8000u;  // between two bf16 codes; fp8 and int8 ties are halves
    for (const uint32_t bits : {tie - 1, tie, tie + 1}) x.push_back(std::bit_cast<float>(bits));
    const uint32_t half = std::bit_cast<uint32_t>(decode_fp16(uint16_t(code)));
    for (const uint32_t bits : {half - 1, half + 1, half + 0x0FFF, half + 0x1000, half + 0x1001}) {
      x.push_back(std::bit_cast<float>(bits));
    }
  }
  x.resize(x.size() / 16 * 16);
  for (const Level& level : simd_levels()) {
    for (const Format format : kFormats) {
      expect_same(run(level.encode_row, format, x, 1.0f, 1), run(scalar::encode_row, format, x, 1.0f, 1),
                  std::string{level.name} + " " + name_of(format));
    }
  }
}

TEST(EncodeRow, scalar_is_the_definition) {
  Random random{23};
  for (const Format format : kFormats) {
    for (int repeat = 0; repeat < 50; repeat++) {
      std::vector<float> x(64);
      for (float& value : x) value = float(random.normal()) * (repeat % 2 ? 1.0f : 300.0f);
      const float scale = repeat % 3 ? 1.0f : 0.37f;
      const size_t stride = 1 + random.below(4), bytes = kv::code_bytes(format);
      const Result result = run(scalar::encode_row, format, x, scale, stride);
      RowStats expected;
      double error_energy = 0, energy = 0;
      for (size_t i = 0; i < x.size(); i++) {
        uint8_t code[4];
        encode(format, x[i] / scale, code);
        ASSERT_EQ(std::memcmp(code, &result.codes[i * stride * bytes], bytes), 0);
        for (size_t gap = bytes; gap < stride * bytes; gap++)
          ASSERT_EQ(result.codes[i * stride * bytes + gap], 0xA5);
        const double error = double(decode(format, code) * scale) - double(x[i]);
        error_energy += error * error;
        energy += double(x[i]) * double(x[i]);
        expected.clipped += std::fabs(x[i] / scale) >= clips_from(format);
        expected.flushed += x[i] != 0 && decode(format, code) == 0;
        expected.absolute_max = std::max(expected.absolute_max, std::fabs(x[i]));
      }
      EXPECT_EQ(result.stats.clipped, expected.clipped);
      EXPECT_EQ(result.stats.flushed, expected.flushed);
      EXPECT_EQ(result.stats.absolute_max, expected.absolute_max);
      EXPECT_NEAR(result.stats.error_energy, error_energy, 1e-5 * error_energy + 1e-30);
      EXPECT_NEAR(result.stats.energy, energy, 1e-5 * energy);
    }
  }
}

// Lane i % 16, then the stated tree: large and tiny terms make any other order visible.
TEST(EncodeRow, sums_fold_in_the_stated_tree) {
  Random random{29};
  std::vector<float> x(128);
  for (float& value : x) value = std::ldexp(1.0f + float(random.uniform()), int(random.below(24)) - 12);
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); i++) lanes[i % 16] = lanes[i % 16] + x[i] * x[i];
  for (int width : {8, 4, 2, 1}) {
    for (int i = 0; i < width; i++) lanes[i] = lanes[i] + lanes[i + width];
  }
  for (const Level& level : simd_levels())
    EXPECT_EQ(run(level.encode_row, Format::f32, x, 1, 1).stats.energy, lanes[0]);
  EXPECT_EQ(run(scalar::encode_row, Format::f32, x, 1, 1).stats.energy, lanes[0]);
}

TEST(EncodeRow, decode_row_reads_what_was_written) {
  Random random{31};
  for (const Format format : kFormats) {
    std::vector<float> x(48), back(48);
    for (float& value : x) value = float(random.normal());
    const Result result = run(scalar::encode_row, format, x, 0.01f, 5);
    scalar::decode_row(format, result.codes.data(), 5, int(x.size()), 0.01f, back.data());
    for (size_t i = 0; i < x.size(); i++) {
      EXPECT_EQ(back[i], decode(format, &result.codes[i * 5 * kv::code_bytes(format)]) * 0.01f);
    }
  }
}

}  // namespace
}  // namespace kveval::kv
