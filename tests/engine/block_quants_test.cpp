#include "engine/model/block_quants.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "engine/random.h"

namespace kveval {
namespace {

using Bytes = std::vector<uint8_t>;

// The formats a second time, from their description as loops that walk a block and write one output after
// another, in double (where every product and sum below is exact, so that rounding once gives the float32
// that fma gives).
double half(const uint8_t* p) {
  const int bits = p[0] + 256 * p[1], exponent = bits / 1024 % 32, fraction = bits % 1024;
  const double sign = bits >= 32768 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

std::vector<double> blocks_of_32(TensorType type, const uint8_t* p) {
  constexpr int kTable[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  std::vector<double> y(32);
  const double d = half(p);
  if (type == TensorType::q8_0) {
    for (int j = 0; j < 32; ++j) y[j] = d * (p[2 + j] < 128 ? p[2 + j] : p[2 + j] - 256);
    return y;
  }
  const bool has_minimum = type == TensorType::q4_1 || type == TensorType::q5_1;
  const bool has_fifth = type == TensorType::q5_0 || type == TensorType::q5_1;
  const double m = has_minimum ? half(p + 2) : 0;
  const uint8_t* const fifth = p + (has_minimum ? 4 : 2);
  const uint8_t* const nibbles = fifth + (has_fifth ? 4 : 0);
  for (int j = 0; j < 16; ++j) {
    int low = nibbles[j] % 16, high = nibbles[j] / 16;
    if (has_fifth) {
      if ((fifth[j / 8] & 1 << j % 8) != 0) low += 16;
      if ((fifth[2 + j / 8] & 1 << j % 8) != 0) high += 16;
    }
    for (int* q : {&low, &high}) {
      if (type == TensorType::q4_0) *q -= 8;
      if (type == TensorType::q5_0) *q -= 16;
      if (type == TensorType::iq4_nl) *q = kTable[*q];
    }
    y[j] = d * low + m;
    y[j + 16] = d * high + m;
  }
  return y;
}

std::vector<double> q2_k(const uint8_t* p) {
  const uint8_t *scales = p, *q = p + 16;
  const double d = half(p + 80), dmin = half(p + 82);
  std::vector<double> y;
  for (int n = 0; n < 2; ++n, q += 32)
    for (int shift = 0; shift < 8; shift += 2)
      for (int part = 0; part < 2; ++part, ++scales)
        for (int l = 0; l < 16; ++l)
          y.push_back(d * (*scales & 15) * (q[16 * part + l] >> shift & 3) - dmin * (*scales >> 4));
  return y;
}

std::vector<double> q3_k(const uint8_t* p) {
  const uint8_t *mask = p, *q = p + 32;
  uint32_t a[4];
  std::memcpy(a, p + 96, 12);
  const uint32_t t = a[2], low = 0x0f0f0f0f, two = 0x03030303;
  a[2] = (a[0] >> 4 & low) | (t >> 4 & two) << 4;
  a[3] = (a[1] >> 4 & low) | (t >> 6 & two) << 4;
  a[0] = (a[0] & low) | (t & two) << 4;
  a[1] = (a[1] & low) | (t >> 2 & two) << 4;
  uint8_t scales[16];
  std::memcpy(scales, a, 16);
  const double d = half(p + 108);
  std::vector<double> y;
  int m = 1, is = 0;
  for (int n = 0; n < 2; ++n, q += 32)
    for (int shift = 0; shift < 8; shift += 2, m *= 2)
      for (int part = 0; part < 2; ++part, ++is)
        for (int l = 16 * part; l < 16 * part + 16; ++l)
          y.push_back(d * (scales[is] - 32) * ((q[l] >> shift & 3) - ((mask[l] & m) != 0 ? 0 : 4)));
  return y;
}

std::vector<double> q4_or_5_k(const uint8_t* p, bool five) {
  const uint8_t *s = p + 4, *high = p + 16, *q = p + (five ? 48 : 16);
  const double d = half(p), dmin = half(p + 2);
  std::vector<double> y;
  for (int j = 0; j < 8; ++j) {
    int scale, minimum;
    if (j < 4) {
      scale = s[j] % 64;
      minimum = s[j + 4] % 64;
    } else {
      scale = s[j + 4] % 16 + s[j - 4] / 64 * 16;
      minimum = s[j + 4] / 16 + s[j] / 64 * 16;
    }
    for (int l = 0; l < 32; ++l) {
      int code = j % 2 == 0 ? q[l] % 16 : q[l] / 16;
      if (five && (high[l] & 1 << j) != 0) code += 16;
      y.push_back(d * scale * code - dmin * minimum);
    }
    if (j % 2 == 1) q += 32;
  }
  return y;
}

std::vector<double> q6_k(const uint8_t* p) {
  const uint8_t *ql = p, *qh = p + 128;
  const auto* sc = reinterpret_cast<const int8_t*>(p + 192);
  const double d = half(p + 208);
  std::vector<double> y(256);
  for (int n = 0; n < 256; n += 128, ql += 64, qh += 32, sc += 8)
    for (int l = 0; l < 32; ++l) {
      const int is = l / 16;
      const int q1 = ((ql[l] & 15) | (qh[l] & 3) << 4) - 32,
                q2 = ((ql[l + 32] & 15) | (qh[l] >> 2 & 3) << 4) - 32;
      const int q3 = (ql[l] >> 4 | (qh[l] >> 4 & 3) << 4) - 32,
                q4 = (ql[l + 32] >> 4 | (qh[l] >> 6 & 3) << 4) - 32;
      y[n + l] = d * sc[is] * q1;
      y[n + l + 32] = d * sc[is + 2] * q2;
      y[n + l + 64] = d * sc[is + 4] * q3;
      y[n + l + 96] = d * sc[is + 6] * q4;
    }
  return y;
}

std::vector<double> independent(TensorType type, const uint8_t* p) {
  float f = 0;
  uint32_t word = 0;
  switch (type) {
    case TensorType::f32: std::memcpy(&f, p, 4); return {double(f)};
    case TensorType::f16: return {half(p)};
    case TensorType::bf16:
      word = (p[0] + 256u * p[1]) << 16;
      std::memcpy(&f, &word, 4);
      return {double(f)};
    case TensorType::q2_k: return q2_k(p);
    case TensorType::q3_k: return q3_k(p);
    case TensorType::q4_k: return q4_or_5_k(p, false);
    case TensorType::q5_k: return q4_or_5_k(p, true);
    case TensorType::q6_k: return q6_k(p);
    default: return blocks_of_32(type, p);
  }
}

class BlockQuants : public testing::TestWithParam<int> {};

TEST_P(BlockQuants, EveryValueIsTheExactOneRoundedOnce) {
  const auto type = TensorType(GetParam());
  const TypeInfo& info = info_of(type);
  const auto elements = size_t(info.block_elements), bytes = size_t(info.block_bytes);
  Random random(11 + uint64_t(GetParam()));
  constexpr size_t kBlocks = 400;
  Bytes data(kBlocks * bytes + 1);
  for (uint8_t& b : data) b = uint8_t(random.next());
  const uint8_t* const blocks = data.data() + 1;  // no alignment is promised
  std::vector<float> out(kBlocks * elements);
  dequantize(type, reinterpret_cast<const std::byte*>(blocks), out.size(), out.data());
  size_t finite = 0;
  for (size_t b = 0; b < kBlocks; ++b) {
    const std::vector<double> expected = independent(type, blocks + b * bytes);
    ASSERT_EQ(expected.size(), elements);
    for (size_t i = 0; i < elements; ++i) {
      const float value = out[b * elements + i], want = float(expected[i]);
      finite += std::isfinite(want);
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(value)) << info.name << " block " << b << " element " << i;
      else
        ASSERT_EQ(value, want) << info.name << " block " << b << " element " << i;
    }
  }
  EXPECT_GT(finite, kBlocks * elements * 8 / 10);  // halves are infinite or NaN once in 32
}

class BlockCodes : public testing::TestWithParam<int> {};

TEST_P(BlockCodes, ACodeChangesItsOwnElementAlone) {
  const auto type = TensorType(GetParam());
  const TypeInfo& info = info_of(type);
  Bytes block(size_t(info.block_bytes));
  Random random(5);
  for (uint8_t& b : block) b = uint8_t(random.next());
  UnpackedBlock before, after;
  unpack_block(type, reinterpret_cast<const std::byte*>(block.data()), before);
  std::vector<int> bits_of(256);
  const int groups = info.block_elements / info.group_elements;
  for (size_t bit = 0; bit < block.size() * 8; ++bit) {
    block[bit / 8] ^= uint8_t(1 << bit % 8);
    unpack_block(type, reinterpret_cast<const std::byte*>(block.data()), after);
    block[bit / 8] ^= uint8_t(1 << bit % 8);
    int codes = 0;
    bool scales = false;
    for (int i = 0; i < info.block_elements; ++i)
      if (before.codes[i] != after.codes[i]) ++codes, ++bits_of[i];
    for (int g = 0; g < groups; ++g) {
      const auto differ = [](float x, float y) {
        return std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y);
      };
      scales |= differ(scale_of(before, g), scale_of(after, g));
      if (info.has_offset) scales |= differ(offset_of(before, g), offset_of(after, g));
    }
    EXPECT_TRUE(codes == 1 ? !scales : codes == 0 && scales) << info.name << " bit " << bit;
  }
  // Every element owns the same number of bits: 2 to 6, or 8.
  for (int i = 1; i < info.block_elements; ++i)
    EXPECT_EQ(bits_of[i], bits_of[0]) << info.name << " element " << i;
}

std::string type_name(const testing::TestParamInfo<int>& type) {
  return std::string(info_of(TensorType(type.param)).name);
}
INSTANTIATE_TEST_SUITE_P(, BlockQuants, testing::Range(0, kTensorTypes), type_name);
INSTANTIATE_TEST_SUITE_P(, BlockCodes, testing::Range(int(TensorType::q4_0), kTensorTypes), type_name);

TEST(TensorShape, SizesNeverWrap) {
  const auto size = [](TensorType type, std::vector<int64_t> shape) { return byte_size(type, shape); };
  EXPECT_EQ(size(TensorType::q4_k, {3, 512}), 3u * 2 * 144);
  EXPECT_EQ(size(TensorType::bf16, {}), 2u);
  EXPECT_EQ(size(TensorType::q8_0, {}), std::nullopt);
  EXPECT_EQ(size(TensorType::q8_0, {32, 33}), std::nullopt);
  EXPECT_EQ(size(TensorType::f32, {4, 0}), std::nullopt);
  EXPECT_EQ(size(TensorType::f32, {-4, -4}), std::nullopt);
  EXPECT_EQ(size(TensorType::f32, {int64_t(1) << 32, int64_t(1) << 32}), std::nullopt);
  EXPECT_EQ(size(TensorType::f32, {int64_t(1) << 31, int64_t(1) << 31}), std::nullopt);
  EXPECT_EQ(size(TensorType::f16, {int64_t(1) << 31, int64_t(1) << 30}), uint64_t(1) << 62);
}

TEST(Tensor, RowsOfAMatrixAreConsecutive) {
  std::vector<float> values(24);
  for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  const Tensor tensor{"t", TensorType::f32, {2, 3, 4}, std::as_bytes(std::span(values)), nullptr};
  EXPECT_EQ(rows(tensor), 6);
  EXPECT_EQ(cols(tensor), 4);
  float out[4];
  dequantize_row(tensor, 4, out);
  EXPECT_EQ(out[0], 16.0f);
  EXPECT_EQ(out[3], 19.0f);
  EXPECT_EQ(shape_text(tensor.shape), "[2, 3, 4]");
}

}  // namespace
}  // namespace kveval
