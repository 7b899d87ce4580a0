// Three ways to read an answer, always computed side by side; a task names its primary one.
#pragma once

#include <string>
#include <string_view>

namespace kveval {

enum class Scorer {
  strict,    // the whole answer, surrounding white space trimmed, equals the expected text
  first,     // the answer, leading white space skipped, begins with the expected text as a whole word
  contains,  // the expected text appears somewhere as a whole word
};

struct Scores {
  bool strict = false, first = false, contains = false;
  bool by(Scorer scorer) const;
  bool operator==(const Scores&) const = default;
};

Scores score(std::string_view answer, std::string_view expected);
const char* name_of(Scorer scorer);

}  // namespace kveval
