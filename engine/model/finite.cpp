#include "engine/model/finite.h"

#include <fmt/format.h>

#include <cstring>

#include "engine/model/block_quants.h"
#include "engine/model/file_error.h"

namespace kveval {
namespace {

// NaN and infinity have every bit of the exponent set. Counted, not searched: a loop without a way out is
// vectorized.
template <class Bits>
bool has_no_full_exponent(std::span<const std::byte> data, Bits exponent) {
  size_t found = 0;
  for (size_t at = 0; at < data.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, data.data() + at, sizeof bits);
    found += (bits & exponent) == exponent;
  }
  return found == 0;
}

constexpr uint16_t kHalfExponent = 0x7c00;

bool has_finite_halves(const Tensor& tensor) {
  const size_t block = size_t(info_of(tensor.type).block_bytes);
  HalfPlaces at = half_places(tensor.type);
  if (at.m == HalfPlaces::kNone) at.m = at.d;  // looked at twice: a loop without branches
  const auto is_full = [](const std::byte* half) {
    uint16_t bits;
    std::memcpy(&bits, half, sizeof bits);
    return (bits & kHalfExponent) == kHalfExponent;
  };
  size_t found = 0;
  for (const std::byte *b = tensor.data.data(), *end = b + tensor.data.size(); b != end; b += block)
    found += size_t(is_full(b + at.d)) + size_t(is_full(b + at.m));
  return found == 0;
}

}  // namespace

bool is_finite(const Tensor& tensor) {
  switch (tensor.type) {
    case TensorType::f32: return has_no_full_exponent<uint32_t>(tensor.data, 0x7f800000);
    case TensorType::f16: return has_no_full_exponent<uint16_t>(tensor.data, kHalfExponent);
    case TensorType::bf16: return has_no_full_exponent<uint16_t>(tensor.data, 0x7f80);
    default: return has_finite_halves(tensor);
  }
}

void check_finite(const std::string& path, const TensorSet& tensors) {
  for (const Tensor& tensor : tensors.all())
    if (!is_finite(tensor))
      throw file_error(path,
                       fmt::format("tensor {} holds values that are not finite numbers", quote(tensor.name)),
                       "its answers would mean nothing under any cache format: fetch the file again");
}

}  // namespace kveval
