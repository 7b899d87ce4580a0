#include "tasks/haystack.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/error.h"
#include "engine/random.h"
#include "tasks/task.h"
#include "tasks/wordbank.h"
#include "tests/tasks/test_tokenizers.h"

namespace kveval {
namespace {

// A folder of its own for each test, removed behind it.
class Haystack : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, std::string_view text) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::filesystem::path folder_;
};

std::string refusal(const std::function<void()>& action, ErrorKind kind) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, kind);
    return error.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const auto& piece : pieces) text += piece;
  return text;
}

GroupSpec spec_of(const nlohmann::json& parameters, int length) {
  return {.task = "niah",
          .parameters = task_named("niah").resolve_parameters(parameters),
          .length = length,
          .haystack = 0,
          .seed = 1};
}

TEST(GeneratedHay, IsVariedPlainAndRepeatable) {
  const PieceSource a = generated_hay(1), b = generated_hay(1), c = generated_hay(2);
  std::set<std::string, std::less<>> sentences, keys;
  for (const auto list : {key_adjectives(), key_nouns()}) keys.insert(list.begin(), list.end());
  size_t same_as_c = 0, words = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string sentence = a();
    EXPECT_EQ(sentence, b());
    same_as_c += sentence == c();
    sentences.insert(sentence);
    EXPECT_EQ(sentence.find_first_of("{}"), std::string::npos) << sentence;
    EXPECT_TRUE(sentence.ends_with(". ") || sentence.ends_with(".\n\n")) << sentence;
    for (const auto& [word, times] : count_words(sentence)) {
      EXPECT_FALSE(keys.contains(word)) << sentence;
      words += times;
    }
  }
  EXPECT_GT(sentences.size(), 4950u);
  EXPECT_LT(same_as_c, 5u);
  EXPECT_NEAR(double(words) / 5000, 12.5, 1.5);
}

TEST(SplitHay, KeepsEveryByteInShortPieces) {
  Random random(3);
  const std::string_view parts[] = {"a",    "word ",      ". ",     "\n",
                                    "\n\n", "!\") ",      "\u00e9", "\u4e2d\u6587",
                                    "  ",   "longerword", "?",      std::string_view("\0", 1)};
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (uint64_t n = random.below(400); n > 0; --n) text += parts[random.below(std::size(parts))];
    const auto pieces = split_hay(text);
    EXPECT_EQ(joined(pieces), text);
    for (const auto& piece : pieces) {
      EXPECT_FALSE(piece.empty());
      EXPECT_LE(piece.size(), 800u);
      EXPECT_NE(static_cast<unsigned char>(piece[0]) & 0xC0, 0x80) << "cut inside a character";
    }
  }
  for (const std::string& text : {std::string(5000, 'x'), std::string(5000, ' '), std::string(5000, '\n'),
                                  std::string(), std::string("one")})
    EXPECT_EQ(joined(split_hay(text)), text);
}

TEST(SplitHay, CutsAtSentences) {
  EXPECT_EQ(
      split_hay("One. Two!  \"Three?\" Four 3.5 five.\nSix\n\nSeven"),
      (std::vector<std::string>{"One. ", "Two!  ", "\"Three?\" ", "Four 3.5 five.\n", "Six\n\n", "Seven"}));
}

TEST_F(Haystack, WrapsAroundFromASeededStart) {
  const std::vector<std::string> pieces = {"a ", "b ", "c "};
  std::set<std::string> starts;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const PieceSource source = repeated_hay(pieces, seed);
    const std::string first = source();
    starts.insert(first);
    source();
    source();
    EXPECT_EQ(source(), first);
  }
  EXPECT_EQ(starts.size(), 3u);
}

TEST_F(Haystack, UserTextFillsTheLength) {
  // Far shorter than needed; holds a key word, in capitals, which must not name a needle then.
  const std::string path =
      write("hay.txt", "\xEF\xBB\xBF  The FALCON flew over the hills. <s> It was late.\r\nNobody saw it.\n");
  const SampleGroup group =
      task_named("niah").make_group(spec_of({{"haystack", {path}}}, 4096), {phantom_tokenizer()});
  EXPECT_EQ(group.samples.size(), 4u);
  EXPECT_NE(group.prefix_text.find("The FALCON flew over the hills. <s> It was late.\r\nNobody saw it.\n"),
            std::string::npos);
  EXPECT_EQ(group.prefix_text.find("\xEF\xBB\xBF"), std::string::npos);
  EXPECT_EQ(std::count(group.prefix.begin(), group.prefix.end(), *phantom_tokenizer().bos()), 1);
  size_t longest = 0;
  for (const Sample& sample : group.samples) {
    longest = std::max(longest, sample.question_tokens.size());
    EXPECT_EQ(sample.question.find("falcon"), std::string::npos);
  }
  EXPECT_LE(group.prefix.size() + longest + 16, 4096u);
  EXPECT_GT(group.prefix.size() + longest + 16, 4096u - 60);
}

TEST_F(Haystack, NamedByContentNotByPath) {
  const std::string text = "One small sentence. And another one.\n";
  const std::string a = write("a.txt", text), b = write("b.txt", text), c = write("c.txt", text + "More.\n");
  const auto key = [&](const std::string& path) {
    const SampleGroup group =
        task_named("niah").make_group(spec_of({{"haystack", {path}}}, 1024), {phantom_tokenizer()});
    return group.samples[0].item_key + group.samples[0].prompt_sha;
  };
  EXPECT_EQ(key(a), key(b));
  EXPECT_NE(key(a), key(c));
}

TEST_F(Haystack, SeveralFilesFollowEachOther) {
  const std::string a = write("a.txt", "First file."), b = write("b.txt", "Second file.");
  EXPECT_EQ(read_hay({identify(a), identify(b)}), "First file.\nSecond file.\n");
  EXPECT_EQ(read_hay({identify(b), identify(a)}), "Second file.\nFirst file.\n");
}

TEST_F(Haystack, RefusesBadFilesByName) {
  const auto try_file = [&](const std::string& path) {
    return refusal(
        [&] {
          task_named("niah").make_group(spec_of({{"haystack", {path}}}, 1024), {phantom_tokenizer()});
        },
        ErrorKind::bad_file);
  };
  EXPECT_NE(try_file(folder_ / "none.txt").find("none.txt"), std::string::npos);
  EXPECT_NE(try_file(folder_).find(folder_.string()), std::string::npos);
  EXPECT_NE(try_file(folder_.string() + "/\xff.txt").find("not UTF-8"), std::string::npos);
  EXPECT_NE(try_file(write("empty.txt", "")).find("empty.txt"), std::string::npos);
  EXPECT_NE(try_file(write("blank.txt", " \n\t\n")).find("blank.txt"), std::string::npos);
  for (const char* bytes :
       {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80", "\xf0\x80\x80\x80"}) {
    const std::string message = try_file(write("bytes.txt", std::string("Good. ") + bytes + " "));
    EXPECT_NE(message.find("bytes.txt"), std::string::npos) << message;
    EXPECT_NE(message.find("byte 6"), std::string::npos) << message;
  }
}

TEST_F(Haystack, RefusesAFileThatChangedSince) {
  const std::string path = write("a.txt", "One sentence.");
  const GroupSpec spec = spec_of({{"haystack", {path}}}, 1024);
  task_named("niah").make_group(spec, {phantom_tokenizer()});
  write("a.txt", "Another sentence.");
  EXPECT_NE(refusal([&] { task_named("niah").make_group(spec, {phantom_tokenizer()}); }, ErrorKind::bad_file)
                .find(path),
            std::string::npos);
}

TEST_F(Haystack, RefusesTextThatUsesUpTheKeyWords) {
  std::string text;
  for (const auto word : key_nouns()) text += std::string(word) + ". ";
  const std::string path = write("words.txt", text);
  EXPECT_NE(refusal(
                [&] {
                  task_named("niah").make_group(spec_of({{"haystack", {path}}}, 8192), {phantom_tokenizer()});
                },
                ErrorKind::usage)
                .find("words"),
            std::string::npos);
}

}  // namespace
}  // namespace kveval
