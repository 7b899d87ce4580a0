// Matrices of any tensor type with random contents, for tests that read them back through dequantize_row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "engine/kv/codec.h"
#include "engine/model/tensor.h"
#include "engine/random.h"

namespace kveval {

// Where a quantized block keeps its halves.
inline std::vector<size_t> halves_of(TensorType type) {
  switch (type) {
    case TensorType::q4_1:
    case TensorType::q5_1:
    case TensorType::q4_k:
    case TensorType::q5_k: return {0, 2};
    case TensorType::q2_k: return {80, 82};
    case TensorType::q3_k: return {108};
    case TensorType::q6_k: return {208};
    default: return {0};
  }
}

// Finite, either sign: mostly of a weight's size, but also zero, subnormal and the largest.
inline uint16_t random_half(Random& random) {
  const uint16_t sign = random.below(2) == 0 ? 0 : 0x8000;
  switch (random.below(8)) {
    case 0: return sign;
    case 1: return uint16_t(sign | random.below(0x400));
    case 2: return uint16_t(sign | (0x7BFF - random.below(3)));
    default: return uint16_t(sign | kv::encode_fp16(float(std::ldexp(1 + random.uniform(), -10))));
  }
}

inline Tensor random_tensor(Random& random, TensorType type, int rows, int cols) {
  const TypeInfo& info = info_of(type);
  Tensor tensor{"random", type, {rows, cols}, {}, nullptr};
  auto data = std::make_shared<std::vector<std::byte>>(size_t(rows) * row_bytes(tensor));
  for (size_t at = 0; at < data->size(); at += size_t(info.block_bytes)) {
    std::byte* block = data->data() + at;
    if (type == TensorType::f32) {
      const float value = float(random.uniform() - 0.5);
      std::memcpy(block, &value, sizeof value);
    } else if (type == TensorType::bf16) {
      const uint16_t value = kv::encode_bf16(float(random.uniform() - 0.5));
      std::memcpy(block, &value, sizeof value);
    } else {
      for (int i = 0; i < info.block_bytes; ++i) block[i] = std::byte(random.next());
      for (const size_t half : halves_of(type)) {
        const uint16_t value = random_half(random);
        std::memcpy(block + half, &value, sizeof value);
      }
    }
  }
  tensor.data = *data;
  tensor.owner = std::move(data);
  return tensor;
}

}  // namespace kveval
