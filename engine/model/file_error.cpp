#include "engine/model/file_error.h"

#include <algorithm>

namespace kveval {

Error file_error(const std::string& path, const std::string& what, std::string hint) {
  return Error(ErrorKind::bad_file, path + ": " + what, std::move(hint));
}

bool has_control_characters(std::string_view text) {
  return std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace kveval
