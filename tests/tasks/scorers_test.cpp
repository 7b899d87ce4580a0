#include "tasks/scorers.h"

#include <gtest/gtest.h>

#include <string>

namespace kveval {
namespace {

constexpr Scores kAll{true, true, true}, kFirst{false, true, true}, kContains{false, false, true}, kNone{};

struct Case {
  const char* answer;
  const char* expected;
  Scores scores;
};

TEST(Scorers, Cases) {
  const Case cases[] = {
      {"481793", "481793", kAll},
      {" \n481793\t", "481793", kAll},
      {"481793.", "481793", kFirst},
      {"481793 is the code", "481793", kFirst},
      {"The code is 481793.", "481793", kContains},
      {"\"481793\"", "481793", kContains},
      {"code-481793", "481793", kContains},
      // the number goes on
      {"4817930", "481793", kNone},
      {"1481793", "481793", kNone},
      {"481793a", "481793", kNone},
      {"x481793", "481793", kNone},
      {"_481793", "481793", kNone},
      {"481793.5", "481793", kNone},
      {"1.481793", "481793", kNone},
      {"3,677", "677", kNone},
      {"3,677", "3", kNone},
      {"3'677", "3", kNone},
      {"677,000", "677", kNone},
      // it does not
      {"3,677 people", "3,677", kFirst},
      {"3,677 people", "3,677 people", kAll},
      {"3,677 people", "3,677 seated", kNone},
      {"3,677, people", "3,677", kFirst},
      {"481793,392811", "481793", kFirst},
      {"481793,392811", "392811", kContains},
      {"12, 481793", "481793", kContains},
      {"481793...", "481793", kFirst},
      // a later whole word counts although an earlier one goes on
      {"4817930 or 481793", "481793", kContains},
      // case and inner space count
      {"Falcon", "falcon", kNone},
      {"amber  falcon", "amber falcon", kNone},
      {"falcons", "falcon", kNone},
      {"falcon's", "falcon", kFirst},
      // ends that are no word characters bind to nothing
      {"f(x)y", "(x)", kContains},
      // nothing
      {"", "481793", kNone},
      {"   ", "481793", kNone},
      {"", "", kAll},
      {" \n", "", kAll},
      {"x", "", kNone},
      {"481793", " 481793 ", kAll},
      // beyond ASCII: café, naïve, CJK without spaces, curly quotes, full-width digits, no-break space,
      // damaged bytes
      {"caf\u00e9", "caf", kNone},
      {"caf\u00e9", "caf\u00e9", kAll},
      {"\u00e9t\u00e9", "t", kNone},
      {"\u7b54\u6848\u662f481793\u3002", "481793", kContains},
      {"\u201c481793\u201d", "481793", kContains},
      {"481793\uff11", "481793", kNone},
      {"481793\u00a0!", "481793", kFirst},
      {"481793\u00d7", "481793", kFirst},
      {"\u0434\u043e\u043c\u0430", "\u0434\u043e\u043c", kNone},
      {"481793\xff", "481793", kFirst},
      {"\x80\x80\x80\x80\x80"
       "481793",
       "481793", kContains},
      {"481793\xe3", "481793", kFirst},
  };
  for (const Case& c : cases) {
    const Scores got = score(c.answer, c.expected);
    EXPECT_TRUE(got == c.scores) << '"' << c.answer << "\" for \"" << c.expected << "\": " << got.strict
                                 << got.first << got.contains;
  }
}

TEST(Scorers, StricterNeverPassesWhereLooserFails) {
  // All answers of up to five characters from a small alphabet, against a few expectations.
  const std::string alphabet = "12,. a";
  for (const char* expected : {"1", "12", "1,2", "a", ".", "1."})
    for (int code = 0; code < 6 * 6 * 6 * 6 * 6; ++code) {
      std::string answer;
      for (int rest = code, i = 0; i < 5; ++i, rest /= 6) answer += alphabet[size_t(rest % 6)];
      const Scores scores = score(answer, expected);
      EXPECT_TRUE(!scores.strict || scores.first) << answer << " / " << expected;
      EXPECT_TRUE(!scores.first || scores.contains) << answer << " / " << expected;
      if (scores.contains) { EXPECT_NE(answer.find(expected), std::string::npos); }
    }
}

TEST(Scorers, ByName) {
  const Scores scores{.strict = false, .first = true, .contains = true};
  EXPECT_FALSE(scores.by(Scorer::strict));
  EXPECT_TRUE(scores.by(Scorer::first));
  EXPECT_TRUE(scores.by(Scorer::contains));
  EXPECT_STREQ(name_of(Scorer::strict), "strict");
  EXPECT_STREQ(name_of(Scorer::first), "first");
  EXPECT_STREQ(name_of(Scorer::contains), "contains");
}

}  // namespace
}  // namespace kveval
