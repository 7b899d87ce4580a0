#include "engine/text/utf8.h"

#include <utf8proc.h>

#include <cstdint>

namespace kveval {
namespace {

const uint8_t* bytes_of(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    int32_t code_point = 0;
    const auto length = utf8proc_iterate(bytes_of(text) + at, ptrdiff_t(text.size() - at), &code_point);
    if (length <= 0) break;
    at += size_t(length);
  }
  return at;
}

size_t first_character(std::string_view text) {
  size_t length = 1;
  while (length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80) ++length;
  return length;
}

void append_utf8(std::string& text, char32_t code_point) {
  uint8_t bytes[4];
  const auto length = utf8proc_encode_char(int32_t(code_point), bytes);
  text.append(reinterpret_cast<const char*>(bytes), size_t(length));
}

}  // namespace kveval
