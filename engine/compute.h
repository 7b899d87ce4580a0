// What the products of a forward pass are made of. Results of different arithmetic are never compared.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "engine/profile.h"

namespace kveval {

enum class Compute : uint8_t {
  float32,
  // Weights, activations, queries, keys, values and softmax weights are rounded to bfloat16, to nearest even,
  // where they are multiplied; sums are float32. Subnormal operands and sums are zeros of the same sign.
  bfloat16,
};

// As runs record it. Static: SIMD levels see this header.
static constexpr const char* name_of(Compute compute) {
  return compute == Compute::float32 ? "float32" : "bfloat16";
}

// The arithmetic of that name, by a record or by a user, who may also say "bf16".
static constexpr std::optional<Compute> compute_named(std::string_view name) {
  if (name == "float32") return Compute::float32;
  if (name == "bfloat16" || name == "bf16") return Compute::bfloat16;
  return std::nullopt;
}

// The 16-bit cache that belongs to it: the baseline arm, skipped layers, the source of a transcoded cache.
static constexpr Format wide_format(Compute compute) {
  return compute == Compute::float32 ? Format::fp16 : Format::bf16;
}

}  // namespace kveval
