#include "engine/model/block_quants.h"

#include <cstring>

#include "engine/kv/codec.h"

namespace kveval {
namespace {

constexpr uint16_t kHalfSign = 0x8000;

uint16_t half_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// A block of one group: its halves are scale and offset.
void set_one_group(UnpackedBlock& out) { out.factor[0] = out.offset_factor[0] = 1; }

uint32_t word_at(const uint8_t* p) {
  uint32_t word = 0;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Element j of a 32-element block is the low nibble of byte j, element j + 16 its high nibble.
int nibble_of_32(const uint8_t* bytes, int element) {
  return element < 16 ? bytes[element] & 15 : bytes[element - 16] >> 4;
}

void unpack_q4_0(const uint8_t* block, UnpackedBlock& out) {
  set_one_group(out);
  for (int i = 0; i < 32; ++i) out.codes[i] = int8_t(nibble_of_32(block + 2, i) - 8);
}

void unpack_q4_1(const uint8_t* block, UnpackedBlock& out) {
  set_one_group(out);
  for (int i = 0; i < 32; ++i) out.codes[i] = int8_t(nibble_of_32(block + 4, i));
}

// The fifth bits of all 32 elements stand in one word, element i in bit i.
int five_bits(uint32_t high, const uint8_t* nibbles, int element) {
  return nibble_of_32(nibbles, element) | int(high >> element & 1) << 4;
}

void unpack_q5_0(const uint8_t* block, UnpackedBlock& out) {
  set_one_group(out);
  const uint32_t high = word_at(block + 2);
  for (int i = 0; i < 32; ++i) out.codes[i] = int8_t(five_bits(high, block + 6, i) - 16);
}

void unpack_q5_1(const uint8_t* block, UnpackedBlock& out) {
  set_one_group(out);
  const uint32_t high = word_at(block + 4);
  for (int i = 0; i < 32; ++i) out.codes[i] = int8_t(five_bits(high, block + 8, i));
}

void unpack_q8_0(const uint8_t* block, UnpackedBlock& out) {
  set_one_group(out);
  std::memcpy(out.codes.data(), block + 2, 32);
}

void unpack_iq4_nl(const uint8_t* block, UnpackedBlock& out) {
  set_one_group(out);
  for (int i = 0; i < 32; ++i) out.codes[i] = kIq4NlValues[nibble_of_32(block + 2, i)];
}

// The K formats' loops run over neighbouring bytes, so that the compiler can take 16 at a time: a large model
// is unpacked whole when it is loaded.

// Two bits each: of every 128 elements, 32 s + l stands in bits 2 s of byte l of 32.
void two_bits_of_128(const uint8_t* bytes, int8_t* codes) {
  for (int i = 0; i < 256; i += 32) {
    const uint8_t* from = bytes + size_t(i) / 128 * 32;
    const int shift = i % 128 / 32 * 2;
    for (int l = 0; l < 32; ++l) codes[i + l] = int8_t(from[l] >> shift & 3);
  }
}

// One bit each: element 32 j + l stands in bit j of byte l; `weight` is added where it is set.
void add_high_bits(const uint8_t* bytes, int weight, int8_t* codes) {
  for (int j = 0; j < 8; ++j)
    for (int l = 0; l < 32; ++l) codes[32 * j + l] = int8_t(codes[32 * j + l] + (bytes[l] >> j & 1) * weight);
}

// Of every 2 `Half` elements the first half are the low nibbles of `Half` bytes, the others the high ones.
template <int Half>
void nibbles(const uint8_t* bytes, int8_t* codes) {
  for (int i = 0; i < 256; i += 2 * Half, bytes += Half) {
    for (int l = 0; l < Half; ++l) {
      codes[i + l] = int8_t(bytes[l] & 15);
      codes[i + Half + l] = int8_t(bytes[l] >> 4);
    }
  }
}

// 16 bytes of scales (low nibble) and minima (high), 64 of codes, d, dmin.
void unpack_q2_k(const uint8_t* block, UnpackedBlock& out) {
  for (int g = 0; g < 16; ++g) {
    out.factor[g] = int8_t(block[g] & 15);
    out.offset_factor[g] = int8_t(block[g] >> 4);
  }
  two_bits_of_128(block + 16, out.codes.data());
}

// Scale g of Q3_K: its low four bits are a nibble of bytes 0-7 (low for g < 8, high from 8 on), its high two
// stand in byte 8 + g % 4 at bit 2 (g / 4).
int q3_k_scale(const uint8_t* scales, int g) {
  const int low = g < 8 ? scales[g] & 15 : scales[g - 8] >> 4;
  return low | (scales[8 + g % 4] >> g / 4 * 2 & 3) << 4;
}

// 32 bytes of high bits, 64 of low two bits, 12 of scales, d.
void unpack_q3_k(const uint8_t* block, UnpackedBlock& out) {
  for (int g = 0; g < 16; ++g) out.factor[g] = int8_t(q3_k_scale(block + 96, g) - 32);
  two_bits_of_128(block + 32, out.codes.data());
  add_high_bits(block, 4, out.codes.data());
  for (int8_t& code : out.codes) code = int8_t(code - 4);
}

// Six-bit scales and minima of eight groups in 12 bytes: the first four whole in bytes 0-3 and 4-7; the
// others with their low four bits in bytes 8-11 and their high two above the first four's.
void unpack_k_factors(const uint8_t* scales, UnpackedBlock& out) {
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? scales[g] & 63 : (scales[g + 4] & 15) | scales[g - 4] >> 6 << 4;
    const int minimum = g < 4 ? scales[g + 4] & 63 : scales[g + 4] >> 4 | scales[g] >> 6 << 4;
    out.factor[g] = int8_t(scale);
    out.offset_factor[g] = int8_t(minimum);
  }
}

// d, dmin, 12 bytes of scales, 128 of nibbles.
void unpack_q4_k(const uint8_t* block, UnpackedBlock& out) {
  unpack_k_factors(block + 4, out);
  nibbles<32>(block + 16, out.codes.data());
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles.
void unpack_q5_k(const uint8_t* block, UnpackedBlock& out) {
  unpack_k_factors(block + 4, out);
  nibbles<32>(block + 48, out.codes.data());
  add_high_bits(block + 16, 16, out.codes.data());
}

// 128 bytes of low nibbles, 64 of high two bits, 16 signed scales, d.
void unpack_q6_k(const uint8_t* block, UnpackedBlock& out) {
  std::memcpy(out.factor.data(), block + 192, 16);
  std::array<int8_t, 256> high;
  two_bits_of_128(block + 128, high.data());
  nibbles<64>(block, out.codes.data());
  for (size_t i = 0; i < 256; ++i) out.codes[i] = int8_t((out.codes[i] | high[i] << 4) - 32);
}

void dequantize_floats(TensorType type, const uint8_t* p, size_t count, float* out) {
  if (type == TensorType::f32) {
    std::memcpy(out, p, count * sizeof(float));
  } else if (type == TensorType::f16) {
    for (size_t i = 0; i < count; ++i) out[i] = kv::decode_fp16(half_at(p + 2 * i));
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = kv::decode_bf16(uint16_t(p[2 * i] | p[2 * i + 1] << 8));
  }
}

}  // namespace

HalfPlaces half_places(TensorType type) {
  switch (type) {
    case TensorType::q2_k: return {80, 82};
    case TensorType::q3_k: return {108, HalfPlaces::kNone};
    case TensorType::q6_k: return {208, HalfPlaces::kNone};
    case TensorType::q4_1:
    case TensorType::q5_1:
    case TensorType::q4_k:
    case TensorType::q5_k: return {0, 2};
    default: return {0, HalfPlaces::kNone};
  }
}

void unpack_block(TensorType type, const std::byte* block, UnpackedBlock& out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(block);
  const HalfPlaces halves = half_places(type);
  out.d = half_at(bytes + halves.d);
  if (halves.m != HalfPlaces::kNone) {
    const bool is_dmin = info_of(type).block_elements == 256;  // the K formats subtract
    out.m = uint16_t(half_at(bytes + halves.m) ^ (is_dmin ? kHalfSign : 0));
  }
  switch (type) {
    case TensorType::q4_0: return unpack_q4_0(bytes, out);
    case TensorType::q4_1: return unpack_q4_1(bytes, out);
    case TensorType::q5_0: return unpack_q5_0(bytes, out);
    case TensorType::q5_1: return unpack_q5_1(bytes, out);
    case TensorType::q8_0: return unpack_q8_0(bytes, out);
    case TensorType::q2_k: return unpack_q2_k(bytes, out);
    case TensorType::q3_k: return unpack_q3_k(bytes, out);
    case TensorType::q4_k: return unpack_q4_k(bytes, out);
    case TensorType::q5_k: return unpack_q5_k(bytes, out);
    case TensorType::q6_k: return unpack_q6_k(bytes, out);
    case TensorType::iq4_nl: return unpack_iq4_nl(bytes, out);
    case TensorType::f32:
    case TensorType::f16:
    case TensorType::bf16: return;
  }
}

float scale_of(const UnpackedBlock& block, int group) {
  return kv::decode_fp16(block.d) * float(block.factor[size_t(group)]);
}

float offset_of(const UnpackedBlock& block, int group) {
  return kv::decode_fp16(block.m) * float(block.offset_factor[size_t(group)]);
}

void dequantize(TensorType type, const std::byte* blocks, size_t count, float* out) {
  const TypeInfo& info = info_of(type);
  if (info.group_elements == 0)
    return dequantize_floats(type, reinterpret_cast<const uint8_t*>(blocks), count, out);
  UnpackedBlock block{};
  const int groups = info.block_elements / info.group_elements;
  for (size_t at = 0; at < count; at += size_t(info.block_elements), blocks += info.block_bytes) {
    unpack_block(type, blocks, block);
    const int8_t* code = block.codes.data();
    for (int group = 0; group < groups; ++group) {
      const float scale = scale_of(block, group), offset = info.has_offset ? offset_of(block, group) : 0.f;
      for (int i = 0; i < info.group_elements; ++i, ++code, ++out)
        *out =
            info.has_offset ? weight_with_offset(scale, *code, offset) : weight_without_offset(scale, *code);
    }
  }
}

}  // namespace kveval
