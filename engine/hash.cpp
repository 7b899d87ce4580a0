#include "engine/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace kveval {

std::string hash_hex(std::string_view bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

std::string hash_hex(std::span<const Token> tokens) {
  return hash_hex({reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes()});
}

}  // namespace kveval
