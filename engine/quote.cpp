#include "engine/quote.h"

#include <fmt/format.h>

#include <cstddef>

namespace kveval {

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= 0x20 && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return out + (text.size() > kLongest ? fmt::format("...' ({} bytes)", text.size()) : "'");
}

}  // namespace kveval
