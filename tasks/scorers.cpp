#include "tasks/scorers.h"

#include <cstdint>

namespace kveval {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kWhiteSpace) - begin + 1);
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

bool is_word_character(uint32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  if (c >= 0xC0 && c < 0x2000) return c != 0xD7 && c != 0xF7;  // not the signs of multiplication and division
  return (c >= 0xFF10 && c <= 0xFF19) || (c >= 0xFF21 && c <= 0xFF3A) || (c >= 0xFF41 && c <= 0xFF5A);
}

// The code point that starts at text[0]. Malformed bytes give a value that is no word character.
uint32_t code_point(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return lead;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC0 || text.size() < length) return 0x80;
  uint32_t c = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  return c;
}

bool word_begins(std::string_view text) { return !text.empty() && is_word_character(code_point(text)); }

bool word_ends(std::string_view text) {
  if (text.empty()) return false;
  size_t start = text.size() - 1;
  while (start > 0 && text.size() - start < 4 && is_continuation(text[start])) --start;
  return is_word_character(code_point(text.substr(start)));
}

size_t leading_digits(std::string_view text) {
  size_t n = 0;
  while (n < text.size() && is_digit(text[n])) ++n;
  return n;
}

// Does `separator` between a digit and `digits` more digits continue the number?
bool joins_number(char separator, size_t digits) {
  if (separator == '.') return digits > 0;
  return (separator == ',' || separator == '\'') && digits == 3;
}

bool goes_on_before(std::string_view before, std::string_view match) {
  if (before.empty() || !word_begins(match)) return false;
  if (word_ends(before)) return true;
  return before.size() >= 2 && is_digit(before[before.size() - 2]) &&
         joins_number(before.back(), leading_digits(match));
}

bool goes_on_after(std::string_view match, std::string_view after) {
  if (after.empty() || !word_ends(match)) return false;
  if (word_begins(after)) return true;
  return is_digit(match.back()) && joins_number(after[0], leading_digits(after.substr(1)));
}

bool whole_word_at(std::string_view text, size_t at, size_t length) {
  const std::string_view match = text.substr(at, length);
  return !goes_on_before(text.substr(0, at), match) && !goes_on_after(match, text.substr(at + length));
}

}  // namespace

bool Scores::by(Scorer scorer) const {
  switch (scorer) {
    case Scorer::strict: return strict;
    case Scorer::first: return first;
    case Scorer::contains: break;
  }
  return contains;
}

Scores score(std::string_view answer, std::string_view expected) {
  answer = trim(answer);
  expected = trim(expected);
  const bool strict = answer == expected;
  if (expected.empty()) return {strict, strict, strict};
  Scores scores{.strict = strict, .first = false, .contains = false};
  for (size_t at = answer.find(expected); at != std::string_view::npos && !scores.contains;
       at = answer.find(expected, at + 1))
    if (whole_word_at(answer, at, expected.size())) {
      scores.contains = true;
      scores.first = at == 0;
    }
  return scores;
}

const char* name_of(Scorer scorer) {
  switch (scorer) {
    case Scorer::strict: return "strict";
    case Scorer::first: return "first";
    case Scorer::contains: break;
  }
  return "contains";
}

}  // namespace kveval
