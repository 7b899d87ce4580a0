// The identity hash of everything kveval compares: XXH3-128, as 32 lowercase hex digits.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"

namespace kveval {

std::string hash_hex(std::string_view bytes);
std::string hash_hex(std::span<const Token> tokens);  // of the ids as little-endian int32

}  // namespace kveval
