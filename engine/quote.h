// How a message shows text that somebody else chose: a file's author, or a user.
#pragma once

#include <string>
#include <string_view>

namespace kveval {

// 'text', its bytes that are not printable ASCII as \xNN, cut after 80: messages reach terminals.
std::string quote(std::string_view text);

}  // namespace kveval
