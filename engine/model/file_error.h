// How the readers of models' files say what is wrong: "PATH: WHAT", names from the file quoted.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "engine/error.h"
#include "engine/quote.h"

namespace kveval {

// Error{bad_file}.
Error file_error(const std::string& path, const std::string& what, std::string hint = {});

// What `read` gives. Readers of a text do not know where it lies: their Errors then begin with `path`.
template <class Read>
auto naming(const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (std::string_view(error.what()).starts_with(path)) throw;
    throw Error(error.kind, path + ": " + error.what(), error.hint);
  }
}

bool has_control_characters(std::string_view text);

}  // namespace kveval
