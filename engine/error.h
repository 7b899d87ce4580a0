// The one exception of kveval. Thrown anywhere, caught in main and mapped to an exit code.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace kveval {

enum class ErrorKind {
  usage,        // an option, profile, suite or length that cannot be honoured     -> exit 2
  bad_file,     // a file that is missing, malformed, not ours, newer or locked     -> exit 2
  no_baseline,  // nothing to compare with, or runs that must not be compared       -> exit 4
  run,          // out of memory, full disk, an engine that failed                  -> exit 5
  cancelled,    // the user interrupted; what is committed can be resumed           -> exit 130
};

// `what()` says what went wrong and where in one sentence; `hint` says what to do next (may be empty).
struct Error : std::runtime_error {
  Error(ErrorKind error_kind, const std::string& message, std::string next_step = {})
      : std::runtime_error(message), kind(error_kind), hint(std::move(next_step)) {}
  ErrorKind kind;
  std::string hint;
};

}  // namespace kveval
