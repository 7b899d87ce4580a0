// What the tokenizers need to know of UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kveval {

// Bytes of the longest valid beginning: no overlong forms, no surrogates, nothing above U+10FFFF.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) { return valid_utf8_prefix(text) == text.size(); }

// Bytes of the first character of valid UTF-8, not empty.
size_t first_character(std::string_view text);

void append_utf8(std::string& text, char32_t code_point);

}  // namespace kveval
