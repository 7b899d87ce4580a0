#include "tasks/suite.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "engine/error.h"

namespace kveval {
namespace {

constexpr std::string_view kTwoFamilies = R"({
  // comments are fine
  "name": "mine", "seed": 18446744073709551615,
  "families": [
    {"task": "niah", "lengths": ["8k", 5000], "haystacks": 3},
    /* a second one */
    {"task": "niah", "lengths": ["1M"], "parameters": {"needles": 2}}
  ]
})";

TEST(Suite, BuiltInNiah) {
  const Suite suite = load_suite("niah");
  EXPECT_EQ(suite.name, "niah");
  EXPECT_EQ(suite.seed, 1u);
  ASSERT_EQ(suite.families.size(), 1u);
  EXPECT_EQ(suite.families[0].task, "niah");
  EXPECT_EQ(suite.families[0].lengths, (std::vector<int>{8192, 32768}));
  EXPECT_EQ(suite.families[0].haystacks, 10);
  EXPECT_EQ(suite.families[0].parameters, R"({"haystack":[],"needles":4})");
  for (const std::string& name : builtin_suites()) EXPECT_EQ(load_suite(name).name, name);
}

TEST(Suite, ReadsAndWritesBack) {
  const Suite suite = suite_from_json(kTwoFamilies);
  EXPECT_EQ(suite.name, "mine");
  EXPECT_EQ(suite.version, 1);
  EXPECT_EQ(suite.seed, UINT64_MAX);
  ASSERT_EQ(suite.families.size(), 2u);
  EXPECT_EQ(suite.families[0].lengths, (std::vector<int>{8192, 5000}));
  EXPECT_EQ(suite.families[1].haystacks, 10);
  EXPECT_EQ(suite.families[1].parameters, R"({"haystack":[],"needles":2})");
  const std::string text = to_json(suite);
  EXPECT_EQ(to_json(suite_from_json(text)), text);
  EXPECT_EQ(suite_hash(suite), suite_hash(suite_from_json(text)));
}

TEST(Suite, HashSeesEveryField) {
  const Suite suite = load_suite("niah");
  std::set<std::string> hashes = {suite_hash(suite)};
  const auto changed = [&](auto change) {
    Suite other = suite;
    change(other);
    EXPECT_TRUE(hashes.insert(suite_hash(other)).second);
  };
  changed([](Suite& s) { s.name = "x"; });
  changed([](Suite& s) { s.version = 2; });
  changed([](Suite& s) { s.seed = 2; });
  changed([](Suite& s) { s.families[0].lengths[0] = 8193; });
  changed([](Suite& s) { s.families[0].haystacks = 11; });
  changed([](Suite& s) { s.families[0].parameters = R"({"haystack":[],"needles":5})"; });
}

TEST(Suite, GroupsVaryLengthFirst) {
  const std::vector<GroupSpec> groups = groups_of(suite_from_json(kTwoFamilies));
  ASSERT_EQ(groups.size(), 3u * 2 + 10);
  const std::pair<int, int> first[] = {{0, 8192}, {0, 5000}, {1, 8192},   {1, 5000},
                                       {2, 8192}, {2, 5000}, {0, 1 << 20}};
  for (size_t i = 0; i < std::size(first); ++i)
    EXPECT_EQ(std::pair(groups[i].haystack, groups[i].length), first[i]) << i;
  for (const GroupSpec& group : groups) EXPECT_EQ(group.seed, UINT64_MAX);
}

TEST(Suite, RefusesByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not JSON"},
      {"{", "not JSON"},
      {"{\n\n  x", "line 3"},
      {"[]", "not an object"},
      {R"({"families":[]})", "'name'"},
      {R"({"name":"a"})", "'families'"},
      {R"({"name":"a","families":[]})", "'families'"},
      {R"({"name":"a","family":[]})", "'family'"},
      {R"({"name":"a","name":"b","families":[]})", "'name' twice"},
      {R"({"name":"","families":[]})", "'name'"},
      {R"({"name":"a","seed":-1,"families":[{"task":"niah","lengths":["8k"]}]})", "seed -1"},
      {R"({"name":"a","version":0,"families":[{"task":"niah","lengths":["8k"]}]})", "'version'"},
      {R"({"name":"a","families":[{"task":"nia","lengths":["8k"]}]})", "'nia'"},
      {R"({"name":"a","families":[{"task":"niah"}]})", "families[0]"},
      {R"({"name":"a","families":[{"task":"niah","lengths":"8k"}]})", "'lengths'"},
      {R"({"name":"a","families":[{"task":"niah","lengths":["8q"]}]})", "'8q'"},
      {R"({"name":"a","families":[{"task":"niah","lengths":[0]}]})", "0 is no length"},
      {R"({"name":"a","families":[{"task":"niah","lengths":["8k"],"haystacks":0}]})", "'haystacks'"},
      {R"({"name":"a","families":[{"task":"niah","lengths":["8k"],"haystack":3}]})", "'haystack'"},
      {R"({"name":"a","families":[{"task":"niah","lengths":["8k"],"parameters":{"x":3}}]})", "'x'"},
      {R"({"name":"a","families":[{"task":"niah","lengths":["8k",8192]}]})", "niah at 8k twice"},
      {R"({"name":"a","families":[{"task":"niah","lengths":["8k"]},{"task":"niah","lengths":["8k"]}]})",
       "twice"},
      {"{\"name\":\"\xff\"}", "not JSON"},
  };
  for (const auto& [text, part] : cases) try {
      suite_from_json(text);
      ADD_FAILURE() << "accepted " << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::bad_file) << text;
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << text << ": " << error.what();
    }
  EXPECT_THROW(suite_from_json(std::string(100000, '[')), Error);
}

TEST(Suite, LoadsFilesAndNamesWhatThereIs) {
  const auto path = std::filesystem::path(testing::TempDir()) / "kveval_suite_test.json";
  std::ofstream(path) << kTwoFamilies;
  EXPECT_EQ(load_suite(path.string()).name, "mine");
  std::ofstream(path) << "{";
  try {
    load_suite(path.string());
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
  }
  std::filesystem::remove(path);
  for (const std::string& bad : {path.string(), std::string("niah2"), std::string(), std::string("/")}) try {
      load_suite(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::usage);
      EXPECT_NE(error.hint.find("niah"), std::string::npos);
    }
}

TEST(Lengths, ReadAndNamed) {
  for (const auto& [text, tokens, name] : {std::tuple{"8k", 8192, "8k"},
                                           {"32K", 32768, "32k"},
                                           {"1m", 1048576, "1m"},
                                           {"1024k", 1048576, "1m"},
                                           {"5000", 5000, "5000"},
                                           {"8192", 8192, "8k"},
                                           {"1", 1, "1"},
                                           {"2147483647", 2147483647, "2147483647"}}) {
    EXPECT_EQ(parse_length(text), tokens);
    EXPECT_EQ(length_name(tokens), name);
    EXPECT_EQ(parse_length(length_name(tokens)), tokens);
  }
  for (const char* bad : {"", "k", "8kk", "8 k", " 8k", "-8k", "0", "0k", "8.5k", "8g", "+8", "0x10",
                          "2147483648", "2048m", "99999999999999999999"})
    try {
      parse_length(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) { EXPECT_EQ(error.kind, ErrorKind::usage); }
}

// Two kilobytes of suite must not cost gigabytes of plan.
TEST(Suite, RefusesMoreHaystacksThanAnyoneWillRun) {
  std::string lengths;
  for (int length = 2000; length < 2400; ++length)
    lengths += fmt::format("{}{}", lengths.empty() ? "" : ",", length);
  try {
    suite_from_json(fmt::format(
        R"({{"name":"many","families":[{{"task":"niah","lengths":[{}],"haystacks":100000}}]}})", lengths));
    FAIL() << "accepted";
  } catch (const Error& error) { EXPECT_THAT(error.what(), ::testing::HasSubstr("40000000 haystacks")); }
}

}  // namespace
}  // namespace kveval
