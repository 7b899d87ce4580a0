#include "engine/model/file_error.h"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace kveval {

Error file_error(const std::string& path, const std::string& what, std::string hint) {
  return Error(ErrorKind::bad_file, path + ": " + what, std::move(hint));
}

std::string quote(std::string_view text) {
  constexpr size_t kLongest = 80;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    if (c >= 0x20 && c < 0x7f)
      out += c;
    else
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  out += text.size() > kLongest ? fmt::format("...' ({} bytes)", text.size()) : "'";
  return out;
}

}  // namespace kveval
