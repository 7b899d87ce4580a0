#include "tasks/wordbank.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cctype>
#include <set>
#include <string>

#include "embedded.h"
#include "engine/text/sentencepiece_tokenizer.h"

namespace kveval {
namespace {

// Slot names and lower-cased literal words of a template.
void split_template(std::string_view text, std::set<std::string>& slots, std::set<std::string>& literals) {
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '{') {
      const size_t close = text.find('}', i);
      ASSERT_NE(close, std::string_view::npos) << text;
      slots.emplace(text.substr(i + 1, close - i - 1));
      i = close + 1;
    } else if (std::isalpha(static_cast<unsigned char>(text[i]))) {
      std::string word;
      for (; i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])); ++i)
        word += char(std::tolower(static_cast<unsigned char>(text[i])));
      literals.insert(word);
    } else {
      ++i;
    }
  }
}

std::set<std::string> all_filler_words() {
  std::set<std::string> slots, words;
  for (const auto text : filler_templates()) split_template(text, slots, words);
  for (const auto& slot : slots)
    for (const auto word : filler_words(slot)) words.emplace(word);
  return words;
}

TEST(WordBank, EverySlotHasWords) {
  std::set<std::string> slots, literals;
  for (const auto text : filler_templates()) split_template(text, slots, literals);
  EXPECT_GE(slots.size(), 10u);
  for (const auto& slot : slots) EXPECT_GE(filler_words(slot).size(), 5u) << slot;
  EXPECT_TRUE(filler_words("nothing").empty());
}

TEST(WordBank, SetsAreLargeAndDisjoint) {
  EXPECT_GE(key_adjectives().size(), 256u);
  EXPECT_GE(key_nouns().size(), 256u);
  std::set<std::string> seen = all_filler_words();
  for (const char* word :
       {"the",    "secret", "access", "code",   "codes", "of",   "some",   "names",    "are",
        "hidden", "in",     "text",   "below",  "read",  "then", "answer", "question", "for",
        "is",     "what",   "with",   "digits", "alone", "a",    "an"})
    seen.insert(word);
  for (const auto list : {key_adjectives(), key_nouns()})
    for (const auto word : list) {
      EXPECT_TRUE(seen.emplace(word).second) << word;
      for (const char c : word) EXPECT_TRUE(c >= 'a' && c <= 'z') << word;
    }
}

TEST(WordBank, EveryWordIsOnePhantomToken) {
  const auto tokenizer = make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model);
  const Tokens before = tokenizer->encode("code for"), after = tokenizer->encode(" is:");
  std::set<std::string> words = all_filler_words();
  for (const auto list : {key_adjectives(), key_nouns()}) words.insert(list.begin(), list.end());
  std::set<Token> tokens;
  for (const auto& word : words) {
    const Tokens all = tokenizer->encode("code for " + word + " is:");
    ASSERT_EQ(all.size(), before.size() + 1 + after.size()) << word;
    EXPECT_TRUE(tokens.insert(all[before.size()]).second) << word;
  }
}

TEST(WordBank, EverySixDigitValueIsThreePhantomTokens) {
  const auto tokenizer = make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model);
  const std::string prefix = "The secret access code for amber falcon is:";
  const Tokens before = tokenizer->encode(prefix);
  ASSERT_EQ(before.size(), 9u);  // the value's context of eight tokens starts behind the first
  const Tokens stop = tokenizer->encode(".");
  // Pairs of digits never merge with each other, so the pairs of each place decide for all million values.
  for (int pair = 0; pair < 100; ++pair)
    for (int place = 0; place < 3; ++place) {
      const std::string digits = fmt::format("{:02}", pair), other = fmt::format("{:02}", 99 - pair);
      const std::string value = place == 0   ? digits + other + digits
                                : place == 1 ? other + digits + digits
                                             : other + other + digits;
      const Tokens all = tokenizer->encode(prefix + " " + value + ".");
      ASSERT_EQ(all.size(), before.size() + 3 + stop.size()) << value;
      EXPECT_TRUE(std::equal(before.begin(), before.end(), all.begin()));
      EXPECT_EQ(tokenizer->decode({all[before.size()]}), fmt::format(" {}", value.substr(0, 2)));
      EXPECT_EQ(tokenizer->decode({all[before.size() + 1]}), value.substr(2, 2));
      EXPECT_EQ(tokenizer->decode({all[before.size() + 2]}), value.substr(4, 2));
    }
}

}  // namespace
}  // namespace kveval
