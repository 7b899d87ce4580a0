// SHA-256 (FIPS 180-4) and base64: what a Content-Security-Policy asks for to allow one style sheet and
// nothing else.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kveval {

std::array<uint8_t, 32> sha256(std::string_view bytes);
std::string base64(std::span<const uint8_t> bytes);  // RFC 4648, padded

}  // namespace kveval
