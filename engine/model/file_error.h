// How the file readers say what is wrong: "PATH: WHAT", names from the file quoted.
#pragma once

#include <string>
#include <string_view>

#include "engine/error.h"

namespace kveval {

Error file_error(const std::string& path, const std::string& what, std::string hint = {});

// 'text' for a message: bytes that are not printable ASCII as \xNN, cut after 80. Names in a file are
// whatever its author chose, and messages reach terminals.
std::string quote(std::string_view text);

}  // namespace kveval
