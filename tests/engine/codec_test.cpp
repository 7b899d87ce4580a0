// Every format against a table made from its definition alone: exponent and mantissa fields as real numbers
// in double precision, nearest neighbour, ties to the even code. All table values and midpoints are exact in
// double.
#include "engine/kv/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/random.h"

namespace kveval::kv {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Definition {
  Format format;
  int exponent_bits, mantissa_bits, bias;
  uint32_t largest_code;  // magnitude
  bool saturates;         // else overflow is infinity, the code after the largest
  uint32_t nan_code;      // what NaN becomes
  size_t bytes;
};

const Definition kFp16{Format::fp16, 5, 10, 15, 0x7BFF, false, 0x7E00, 2};
const Definition kBf16{Format::bf16, 8, 7, 127, 0x7F7F, false, 0x7FC0, 2};
const Definition kE4m3{Format::e4m3, 4, 3, 7, 0x7E, true, 0x7F, 1};
const Definition kE5m2{Format::e5m2, 5, 2, 15, 0x7B, true, 0x7F, 1};
const Definition kFloats[] = {kFp16, kBf16, kE4m3, kE5m2};

// magnitudes[c]: the value of code c as if no code were special, up to the first beyond the largest.
std::vector<double> magnitudes(const Definition& d) {
  std::vector<double> values;
  const double unit = std::ldexp(1.0, -d.mantissa_bits);
  for (uint32_t code = 0; code <= d.largest_code + 1; code++) {
    const int exponent = int(code >> d.mantissa_bits);
    const double fraction = double(code & ((1u << d.mantissa_bits) - 1)) * unit;
    values.push_back(exponent == 0 ? std::ldexp(fraction, 1 - d.bias)
                                   : std::ldexp(1.0 + fraction, exponent - d.bias));
  }
  return values;
}

std::vector<double> int8_magnitudes() {
  std::vector<double> values;
  for (int i = 0; i <= 128; i++) values.push_back(i);
  return values;
}

// The index of the value nearest to x >= 0, of the even one of two.
uint32_t nearest(const std::vector<double>& values, double x) {
  const size_t above = size_t(std::lower_bound(values.begin(), values.end(), x) - values.begin());
  if (above == values.size()) return uint32_t(values.size() - 1);
  if (above == 0 || values[above] == x) return uint32_t(above);
  const double up = values[above] - x, down = x - values[above - 1];
  if (up == down) return uint32_t(above % 2 == 0 ? above : above - 1);
  return uint32_t(up < down ? above : above - 1);
}

// A format's expected behaviour, whatever it is.
struct Expected {
  uint32_t code;
  bool clipped;
};

class Table {
 public:
  explicit Table(const Definition& d) : format(d.format), values(magnitudes(d)), d_(d) {}
  explicit Table(Format int8) : format(int8), values(int8_magnitudes()) {}

  Expected encode(float x) const {
    if (std::isnan(x)) return {format == Format::int8 ? 0 : d_.nan_code, false};
    const uint32_t index = nearest(values, std::fabs(double(x)));
    const bool clipped = index == values.size() - 1;
    if (format == Format::int8) {
      const int magnitude = std::min(int(index), 127);
      return {uint32_t(uint8_t(int8_t(std::signbit(x) ? -magnitude : magnitude))), clipped};
    }
    const uint32_t code =
        clipped && d_.saturates ? d_.largest_code : index;  // else the code after it: infinity
    return {code | uint32_t(std::signbit(x)) << (8 * d_.bytes - 1), clipped};
  }

  Format format;
  std::vector<double> values;

 private:
  Definition d_{};
};

std::vector<Table> tables() {
  std::vector<Table> all;
  for (const Definition& d : kFloats) all.emplace_back(d);
  all.emplace_back(Format::int8);
  return all;
}

uint32_t code_of(Format format, float x) {
  uint8_t bytes[4] = {0xAA, 0xAA, 0xAA, 0xAA};
  encode(format, x, bytes);
  for (size_t i = kv::code_bytes(format); i < 4; i++) EXPECT_EQ(bytes[i], 0xAA) << "wrote past the code";
  uint32_t code = 0;
  for (size_t i = kv::code_bytes(format); i-- > 0;) code = code << 8 | bytes[i];
  return code;
}

float value_of(Format format, uint32_t code) {
  const uint8_t bytes[4] = {uint8_t(code), uint8_t(code >> 8), uint8_t(code >> 16), uint8_t(code >> 24)};
  return decode(format, bytes);
}

// Counts instead of one EXPECT a value: millions are compared.
void expect_encodes(const Table& table, const std::vector<float>& inputs) {
  size_t wrong = 0;
  for (const float x : inputs) {
    const Expected expected = table.encode(x);
    const uint32_t code = code_of(table.format, x);
    const bool clipped = std::fabs(x) >= clips_from(table.format);
    if (code == expected.code && clipped == expected.clipped) continue;
    if (wrong++ < 5) {
      ADD_FAILURE() << name_of(table.format) << " encodes " << x << " (" << std::hexfloat << x << ") as "
                    << std::hex << code << ", not " << expected.code << "; clipped " << clipped << ", not "
                    << expected.clipped;
    }
  }
  EXPECT_EQ(wrong, 0u) << name_of(table.format);
}

TEST(Codec, every_code_decodes_to_its_definition) {
  for (const Definition& d : kFloats) {
    const std::vector<double> values = magnitudes(d);
    const uint32_t sign_bit = 1u << (8 * d.bytes - 1);
    for (uint32_t code = 0; code < 2 * sign_bit; code++) {
      const uint32_t magnitude = code & ~sign_bit;
      const float decoded = value_of(d.format, code);
      EXPECT_EQ(std::signbit(decoded), (code & sign_bit) != 0);
      // The only special codes: all exponent bits set, or, for e4m3, which has no infinity, all bits.
      const bool special = magnitude > d.largest_code;
      const bool infinity = special && d.format != Format::e4m3 && magnitude == d.largest_code + 1;
      if (infinity) {
        EXPECT_TRUE(std::isinf(decoded)) << name_of(d.format) << " " << code;
      } else if (special) {
        EXPECT_TRUE(std::isnan(decoded)) << name_of(d.format) << " " << code;
      } else {
        EXPECT_EQ(std::fabs(double(decoded)), values[magnitude]) << name_of(d.format) << " " << code;
      }
    }
  }
  for (int i = -128; i < 128; i++) EXPECT_EQ(value_of(Format::int8, uint8_t(int8_t(i))), float(i));
}

TEST(Codec, every_half_and_every_bf16_as_input) {
  std::vector<float> inputs;
  for (uint32_t code = 0; code < 65536; code++) {
    inputs.push_back(std::bit_cast<float>(code << 16));  // bf16: a float's upper half
    const uint32_t exponent = code >> 10 & 31, mantissa = code & 1023;
    const double magnitude = exponent == 31  ? (mantissa == 0 ? HUGE_VAL : std::nan(""))
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, int(exponent) - 25);
    inputs.push_back(float(code & 0x8000 ? -magnitude : magnitude));
  }
  for (const Table& table : tables()) expect_encodes(table, inputs);
}

TEST(Codec, every_rounding_boundary) {
  for (const Table& table : tables()) {
    std::vector<float> inputs;
    const auto around = [&](double exact) {
      const float x = float(exact);
      if (double(x) != exact) return;  // bf16's first value beyond the largest is no float
      for (const float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, kInf)}) {
        inputs.push_back(y);
        inputs.push_back(-y);
      }
    };
    for (size_t code = 0; code + 1 < table.values.size(); code++) {
      around(table.values[code]);
      const double middle = (table.values[code] + table.values[code + 1]) / 2;
      EXPECT_EQ(double(float(middle)), middle) << "a midpoint no float hits would leave a tie untested";
      around(middle);
    }
    around(table.values.back());
    expect_encodes(table, inputs);
  }
}

TEST(Codec, random_floats) {
  Random random{3};
  std::vector<float> inputs;
  for (int i = 0; i < 200000; i++) {
    inputs.push_back(std::bit_cast<float>(uint32_t(random.next() >> 32)));
    inputs.push_back(float((random.uniform() - 0.5) * 300));
  }
  for (const Table& table : tables()) expect_encodes(table, inputs);
}

TEST(Codec, f32_keeps_every_bit) {
  Random random{5};
  std::vector<uint32_t> patterns{0, 0x80000000u, 0x7F800000u, 0xFF800000u, 0x7FC00001u, 1, 0x807FFFFFu};
  for (int i = 0; i < 1000; i++) patterns.push_back(uint32_t(random.next() >> 32));
  for (const uint32_t bits : patterns) {
    EXPECT_EQ(code_of(Format::f32, std::bit_cast<float>(bits)), bits);
    EXPECT_EQ(std::bit_cast<uint32_t>(value_of(Format::f32, bits)), bits);
  }
}

// What CUDA's own conversions give (reference: fp8 numerics), written out by hand.
TEST(Codec, special_values) {
  const struct {
    Format format;
    float x;
    uint32_t code;
  } cases[] = {{Format::e4m3, 448, 0x7E},
               {Format::e4m3, 464, 0x7E},
               {Format::e4m3, 464.1f, 0x7E},
               {Format::e4m3, 1e4f, 0x7E},
               {Format::e4m3, kInf, 0x7E},
               {Format::e4m3, -kInf, 0xFE},
               {Format::e4m3, kNan, 0x7F},
               {Format::e4m3, -kNan, 0x7F},
               {Format::e4m3, 0.0f, 0x00},
               {Format::e4m3, -0.0f, 0x80},
               {Format::e4m3, 0x1p-9f, 0x01},
               {Format::e4m3, 0x1p-10f, 0x00},
               {Format::e4m3, -0x1p-10f, 0x80},
               {Format::e4m3, 0x1.8p-10f, 0x01},
               {Format::e4m3, 0x1p-6f, 0x08},
               {Format::e4m3, 17, 0x58},
               {Format::e4m3, 19, 0x5A},
               {Format::e4m3, 1.0625f, 0x38},
               {Format::e5m2, 57344, 0x7B},
               {Format::e5m2, 61440, 0x7B},
               {Format::e5m2, 1e9f, 0x7B},
               {Format::e5m2, kInf, 0x7B},
               {Format::e5m2, -kInf, 0xFB},
               {Format::e5m2, kNan, 0x7F},
               {Format::e5m2, 0x1p-16f, 0x01},
               {Format::e5m2, 0x1p-17f, 0x00},
               {Format::e5m2, 0x1.8p-17f, 0x01},
               {Format::e5m2, 0x1p-14f, 0x04},
               {Format::e5m2, -0.0f, 0x80},
               {Format::fp16, 65504, 0x7BFF},
               {Format::fp16, 65519.996f, 0x7BFF},
               {Format::fp16, 65520, 0x7C00},
               {Format::fp16, -kInf, 0xFC00},
               {Format::fp16, kNan, 0x7E00},
               {Format::fp16, -kNan, 0x7E00},
               {Format::fp16, 0x1p-24f, 0x0001},
               {Format::fp16, 0x1p-25f, 0x0000},
               {Format::fp16, 2049, 0x6800},
               {Format::fp16, 2051, 0x6802},
               {Format::bf16, 257, 0x4380},
               {Format::bf16, 259, 0x4382},
               {Format::bf16, 3.4e38f, 0x7F80},
               {Format::bf16, kNan, 0x7FC0},
               {Format::bf16, 0x1p-149f, 0x0000},
               {Format::bf16, 0x1p-133f, 0x0001},
               {Format::int8, 0.5f, 0},
               {Format::int8, 1.5f, 2},
               {Format::int8, 2.5f, 2},
               {Format::int8, 0.50000006f, 1},
               {Format::int8, -0.5f, 0},
               {Format::int8, -1.5f, 0xFE},
               {Format::int8, 126.5f, 126},
               {Format::int8, 127.49f, 127},
               {Format::int8, 127.5f, 127},
               {Format::int8, -127.5f, 0x81},
               {Format::int8, -128, 0x81},
               {Format::int8, 1e30f, 127},
               {Format::int8, -kInf, 0x81},
               {Format::int8, kNan, 0},
               {Format::int8, -0.0f, 0}};
  for (const auto& [format, x, code] : cases)
    EXPECT_EQ(code_of(format, x), code) << name_of(format) << " " << x;
}

TEST(Codec, works_at_compile_time) {
  static_assert(decode_e4m3(encode_e4m3(19.0f)) == 20.0f);
  static_assert(decode_e5m2(encode_e5m2(1e9f)) == 57344.0f);
  static_assert(decode_fp16(encode_fp16(0x1p-24f)) == 0x1p-24f);
  static_assert(decode_bf16(encode_bf16(257.0f)) == 256.0f);
  static_assert(decode_int8(encode_int8(-2.5f)) == -2.0f);
}

TEST(Codec, largest_and_the_scale_that_reaches_it) {
  for (const Table& table : tables()) {
    EXPECT_EQ(double(largest(table.format)), table.values[table.values.size() - 2]) << name_of(table.format);
  }
  EXPECT_EQ(largest(Format::f32), std::numeric_limits<float>::max());
  EXPECT_EQ(scale_for(Format::int8, 254.0f), 2.0f);
  EXPECT_EQ(scale_for(Format::e4m3, 1.0f), 1.0f / 448.0f);
  for (const Format format : {Format::e4m3, Format::e5m2, Format::int8}) {
    EXPECT_EQ(scale_for(format, 0.0f), std::numeric_limits<float>::min());
    // The row's own maximum gets the largest code and never counts as clipped, although it divided by its own
    // scale may land a unit above the largest value.
    Random random{9};
    bool above = false;
    for (int i = 0; i < 20000; i++) {
      const float x = std::ldexp(1.0f + float(random.uniform()), int(random.below(60)) - 30);
      const float scaled = x / scale_for(format, x);
      above = above || scaled > largest(format);
      EXPECT_EQ(value_of(format, code_of(format, scaled)), largest(format)) << x;
      EXPECT_LT(scaled, clips_from(format)) << x;
    }
    EXPECT_TRUE(above || format == Format::e5m2) << "the case this test is about did not occur";
  }
}

}  // namespace
}  // namespace kveval::kv
