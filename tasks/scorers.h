// Three ways to read an answer, always computed side by side; a task names its primary one.
//
// All compare bytes, so case counts. "As a whole word" means that the text does not go on across the ends of
// the match: 481793 is not in 4817930, a481793, 481793.5 or 481,793,000, and 677 is not in 3,677, yet 3,677
// is in "3,677 people" and 481793 in "It is 481793." A comma or apostrophe between digits joins groups of
// three; a point joins any digits. Word characters are ASCII letters, digits and '_', the alphabets of U+00C0
// to U+1FFF and full-width letters and digits; scripts written without spaces (Chinese, Japanese) do not join
// to what stands beside.
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

// strict implies first, first implies contains. Surrounding white space of `expected` (ASCII white space
// throughout) does not count; when nothing is expected, only an empty answer is right.
Scores score(std::string_view answer, std::string_view expected);
const char* name_of(Scorer scorer);

}  // namespace kveval
