// What readers may do with a fuzzer's input: read it, or refuse it.
#pragma once

#include <cstdlib>

#include "engine/error.h"

namespace kveval::fuzz {

// Aborts on an Error that is no Error{bad_file}; other exceptions end the fuzzer by themselves.
template <class Read>
void may_refuse(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    if (error.kind != ErrorKind::bad_file) std::abort();
  }
}

}  // namespace kveval::fuzz
