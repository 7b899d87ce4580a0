// What a reader says of a file that it does not take.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "engine/error.h"

namespace kveval {

// Message and hint of the Error of this kind that `read` must throw; "(accepted)" when it throws none.
template <class Read>
std::string refusal(const Read& read, ErrorKind kind = ErrorKind::bad_file) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, kind);
    return error.what() + std::string(" ") + error.hint;
  }
  return "(accepted)";
}

}  // namespace kveval
