#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "engine/hash.h"
#include "tasks/task.h"
#include "tests/tasks/test_tokenizers.h"

namespace kveval {
namespace {

const Task& niah() { return task_named("niah"); }

GroupSpec spec_of(int length, int haystack, uint64_t seed, int needles) {
  return {.task = "niah",
          .parameters = niah().resolve_parameters({{"needles", needles}}),
          .length = length,
          .haystack = haystack,
          .seed = seed};
}

SampleGroup make(int length, int haystack, uint64_t seed, int needles,
                 const Framing& framing = {phantom_tokenizer()}) {
  return niah().make_group(spec_of(length, haystack, seed, needles), framing);
}

size_t count(std::string_view text, std::string_view part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// "... code for amber falcon is:" -> "amber falcon"
std::string name_in(const Sample& sample) {
  const size_t begin = sample.question.rfind("code for ") + 9;
  return sample.question.substr(begin, sample.question.rfind(" is:") - begin);
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// What holds for every group, whatever the tokenizer.
void check_group(const SampleGroup& group, int needles, const Tokenizer& tokenizer, size_t longest_piece) {
  // The prefix is its text with BOS once, but for an end that the tokenizer merges with the question, and
  // fills its length to within one piece.
  Tokens bos;
  if (tokenizer.bos()) {
    bos = {*tokenizer.bos()};
    EXPECT_EQ(std::count(group.prefix.begin(), group.prefix.end(), bos[0]), 1);
  }
  const Tokens prefix = bos + tokenizer.encode(group.prefix_text);
  ASSERT_LE(group.prefix.size(), prefix.size());
  EXPECT_GE(group.prefix.size() + 1, prefix.size());
  EXPECT_TRUE(std::equal(group.prefix.begin(), group.prefix.end(), prefix.begin()));
  EXPECT_EQ(group.prefix_sha, hash_hex(group.prefix));
  size_t longest = 0;
  for (const Sample& sample : group.samples) longest = std::max(longest, sample.question_tokens.size());
  const size_t used = group.prefix.size() + longest + size_t(niah().max_answer_tokens);
  EXPECT_LE(used, size_t(group.length));
  EXPECT_LT(size_t(group.length) - used, longest_piece);

  ASSERT_EQ(group.samples.size(), size_t(needles));
  std::set<std::string> words, values, keys, shas;
  for (int i = 0; i < needles; ++i) {
    const Sample& sample = group.samples[size_t(i)];
    EXPECT_EQ(sample.index, i);
    EXPECT_EQ(sample.stratum, i);
    EXPECT_TRUE(keys.insert(sample.item_key).second);
    EXPECT_TRUE(shas.insert(sample.prompt_sha).second);
    // Question and needle say the same, and the needle stands once.
    const std::string name = name_in(sample), frame = "The secret access code for " + name + " is:";
    EXPECT_TRUE(sample.question.ends_with("\n" + frame));
    EXPECT_EQ(count(group.prefix_text, frame + " " + sample.expected + "."), 1u);
    EXPECT_EQ(count(group.prefix_text, name), 1u);
    EXPECT_TRUE(values.insert(sample.expected).second);
    EXPECT_EQ(sample.expected.size(), 6u);
    EXPECT_TRUE(words.insert(name.substr(0, name.find(' '))).second) << name;
    EXPECT_TRUE(words.insert(name.substr(name.find(' ') + 1)).second) << name;

    // The target is what follows; depth points at it.
    if (i % 16 == 0) {  // as one text; a second each at 128K for all of 64
      EXPECT_EQ(group.prefix + sample.question_tokens + sample.target,
                bos + tokenizer.encode(group.prefix_text + sample.question + " " + sample.expected));
    }
    ASSERT_TRUE(sample.depth);
    const auto at = size_t(std::llround(*sample.depth * double(group.prefix.size())));
    ASSERT_LE(at + sample.target.size(), group.prefix.size());
    EXPECT_TRUE(
        std::equal(sample.target.begin(), sample.target.end(), group.prefix.begin() + std::ptrdiff_t(at)));
    for (const Sample& other : group.samples)
      if (&other != &sample && other.target.size() >= sample.target.size()) {
        EXPECT_FALSE(std::equal(sample.target.begin(), sample.target.end(), other.target.begin()));
      }
  }
}

TEST(Niah, HoldsForManySeedsAndLengths) {
  for (uint64_t seed = 1; seed <= 10; ++seed)
    for (const auto& [length, needles] : {std::pair{512, 1}, {1024, 4}, {2048, 8}, {4096, 64}}) {
      const SampleGroup group = make(length, int(seed % 7), seed, needles);
      check_group(group, needles, phantom_tokenizer(), 40);
      // The phantom recognises a place by eight tokens: the same eight stand before needle and answer.
      for (const Sample& sample : group.samples) {
        const auto at = std::llround(*sample.depth * double(group.prefix.size()));
        ASSERT_GE(at, 8);
        EXPECT_TRUE(std::equal(sample.question_tokens.end() - 8, sample.question_tokens.end(),
                               group.prefix.begin() + at - 8));
        EXPECT_EQ(sample.target.size(), 3u);
      }
    }
}

TEST(Niah, HoldsAtFullSize) {
  check_group(make(131072, 0, 1, 4), 4, phantom_tokenizer(), 40);
  check_group(make(16384, 9, 1, 64), 64, phantom_tokenizer(), 40);
}

TEST(Niah, HoldsForAnotherTokenizer) {
  const ByteTokenizer bytes;
  for (uint64_t seed = 1; seed <= 10; ++seed) check_group(make(8192, 3, seed, 5, {bytes}), 5, bytes, 150);
}

TEST(Niah, FitsWhereLoneSentencesForetellBadly) {
  for (const auto& [inside, alone] : {std::pair<size_t, size_t>{1, 0}, {40, 0}, {0, 1}, {0, 40}, {40, 40}}) {
    const UnevenTokenizer uneven(inside, alone);
    for (int length = 4000; length < 4150; ++length)
      check_group(make(length, 0, 1, 3, {uneven}), 3, uneven, 150 + inside + alone);
  }
}

TEST(Niah, NeedlesSpreadOverStrata) {
  std::vector<std::vector<double>> inside(4);
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const SampleGroup group = make(2048, 0, seed, 4);
    for (const Sample& sample : group.samples) {
      const double place = *sample.depth * 4 - *sample.stratum;
      // The instruction and the needles themselves move a boundary by a few sentences' worth.
      EXPECT_GT(place, -0.1);
      EXPECT_LT(place, 1.1);
      inside[size_t(*sample.stratum)].push_back(place);
    }
  }
  for (const auto& places : inside) {  // jitter covers the stratum: mean 0.5, sd 0.29 / sqrt(60)
    double mean = 0;
    for (const double place : places) mean += place / double(places.size());
    EXPECT_NEAR(mean, 0.5, 0.15);
    EXPECT_LT(*std::min_element(places.begin(), places.end()), 0.2);
    EXPECT_GT(*std::max_element(places.begin(), places.end()), 0.8);
  }
}

TEST(Niah, SameSpecSamePrompt) {
  const SampleGroup a = make(2048, 2, 5, 4), b = make(2048, 2, 5, 4);
  EXPECT_EQ(a.prefix, b.prefix);
  EXPECT_EQ(a.prefix_text, b.prefix_text);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(a.samples[i].prompt_sha, b.samples[i].prompt_sha);
}

TEST(Niah, EveryPartOfTheSpecCounts) {
  std::set<std::string> keys, prefixes;
  const GroupSpec specs[] = {spec_of(2048, 2, 5, 4), spec_of(2049, 2, 5, 4), spec_of(2048, 3, 5, 4),
                             spec_of(2048, 2, 6, 4), spec_of(2048, 2, 5, 5)};
  for (const GroupSpec& spec : specs) {
    const SampleGroup group = niah().make_group(spec, {phantom_tokenizer()});
    EXPECT_TRUE(keys.insert(group.samples[0].item_key).second);
    EXPECT_TRUE(prefixes.insert(group.prefix_text).second);
  }
}

TEST(Niah, KeyIsOfTheTaskPromptIsOfTheTokenizer) {
  const ByteTokenizer bytes;
  const SampleGroup a = make(4096, 1, 3, 4), b = make(4096, 1, 3, 4, {bytes});
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(a.samples[i].item_key, b.samples[i].item_key);
    EXPECT_EQ(a.samples[i].question, b.samples[i].question);
    EXPECT_EQ(a.samples[i].expected, b.samples[i].expected);
    EXPECT_NE(a.samples[i].prompt_sha, b.samples[i].prompt_sha);
  }
}

TEST(Niah, HaystacksDiffer) {
  std::set<std::string> sentences;
  size_t total = 0;
  for (int haystack = 0; haystack < 10; ++haystack) {
    std::istringstream text(make(4096, haystack, 1, 4).prefix_text);
    for (std::string sentence; std::getline(text, sentence, '.'); ++total) sentences.insert(sentence);
  }
  EXPECT_GT(double(sentences.size()), 0.98 * double(total)) << total;
}

TEST(Niah, NamesTheSmallestLengthThatHolds) {
  for (const int needles : {1, 4, 64}) {
    int smallest = 0;
    try {
      make(60, 0, 1, needles);
      ADD_FAILURE() << "60 tokens held " << needles;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::usage);
      EXPECT_NE(std::string(error.what()).find("60"), std::string::npos);
      smallest = std::stoi(error.hint.substr(error.hint.find("at least ") + 9));
    }
    // The text depends on the length, so the named length may be a sentence off for itself: follow it once
    // more.
    for (int tries = 0; tries < 3; ++tries) try {
        EXPECT_EQ(make(smallest, 0, 1, needles).samples.size(), size_t(needles));
        break;
      } catch (const Error& error) {
        EXPECT_LT(tries, 2) << error.hint;
        smallest = std::stoi(error.hint.substr(error.hint.find("at least ") + 9));
      }
  }
}

TEST(Niah, RefusesATokenizerThatCannotAskForTheValue) {
  const WordTokenizer words;
  try {
    make(2048, 0, 1, 1, {words});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::run);
    EXPECT_NE(std::string(error.what()).find("0 times"), std::string::npos) << error.what();
  }
}

TEST(Niah, Parameters) {
  using nlohmann::json;
  EXPECT_EQ(niah().resolve_parameters(json::object()), R"({"haystack":[],"needles":4})");
  EXPECT_EQ(niah().resolve_parameters(json::parse(niah().resolve_parameters({{"needles", 64}}))),
            R"({"haystack":[],"needles":64})");
  for (const char* bad :
       {R"({"needles":0})", R"({"needles":65})", R"({"needles":-1})", R"({"needles":1.5})",
        R"({"needles":"4"})", R"({"needles":99999999999999999999})", R"({"needle":4})",
        R"({"haystack":"a.txt"})", R"({"haystack":[1]})", R"({"haystack":[{"path":"a"}]})", "[]", "4"})
    try {
      niah().resolve_parameters(json::parse(bad));
      ADD_FAILURE() << bad;
    } catch (const Error& error) { EXPECT_EQ(error.kind, ErrorKind::usage) << bad; }
  EXPECT_THROW(task_named("needle"), Error);
}

// Prompts as they were generated when the task's version was last raised. If this fails although the version
// is the same, old and new results would be compared as if they came from one prompt: raise the version, then
// the file.
TEST(Niah, GoldenPrompts) {
  std::ifstream file(KVEVAL_SOURCE_DIR "/tests/golden/niah_prompts.json");
  ASSERT_TRUE(file);
  const auto golden = nlohmann::json::parse(file);
  EXPECT_EQ(golden["version"], niah().version);
  EXPECT_EQ(golden["tokenizer"], phantom_tokenizer().hash());
  ASSERT_GE(golden["prompts"].size(), 5u);
  for (const auto& prompt : golden["prompts"]) {
    const SampleGroup group = make(prompt["length"], prompt["haystack"], prompt["seed"], prompt["needles"]);
    EXPECT_EQ(group.samples.back().item_key, prompt["last_item_key"]) << prompt;
    EXPECT_EQ(group.samples.back().prompt_sha, prompt["last_prompt_sha"]) << prompt;
  }
}

}  // namespace
}  // namespace kveval
