// The repository itself against the rules, and the rules against trees that break them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/structure/rules.h"

namespace kveval::structure {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

constexpr size_t kMaxLines = 500;
// Path to the reason why the file may be longer.
const std::map<std::string, std::string> kLongFiles = {};

Tree read_tree(std::initializer_list<std::string> folders) {
  namespace fs = std::filesystem;
  const fs::path root = KVEVAL_SOURCE_DIR;
  Tree tree;
  for (const std::string& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh" &&
          extension != ".inc")
        continue;
      std::ifstream file(entry.path(), std::ios::binary);
      tree[fs::relative(entry.path(), root)] =
          std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
  }
  return tree;
}

Tree product() { return read_tree({"engine", "tasks", "harness", "reports"}); }

TEST(Repository, IsFound) {
  const Tree tree = product();
  EXPECT_GE(tree.size(), 15u);
  EXPECT_TRUE(tree.contains("engine/engine.h"));
}

TEST(Repository, IncludesFollowTheArrows) { EXPECT_THAT(check_arrows(product()), IsEmpty()); }

TEST(Repository, HeadersBeginWithACommentAndPragmaOnce) {
  EXPECT_THAT(check_headers(read_tree({"engine", "tasks", "harness", "reports", "tests"})), IsEmpty());
}

TEST(Repository, HeadersHaveNoCycles) { EXPECT_THAT(check_cycles(product()), IsEmpty()); }

TEST(Repository, FilesStayReadable) {
  EXPECT_THAT(
      check_lengths(read_tree({"engine", "tasks", "harness", "reports", "tests"}), kMaxLines, kLongFiles),
      IsEmpty());
}

TEST(Includes, AreReadInEveryForm) {
  const auto includes = includes_of(
      "#pragma once\n"
      "#include <vector>\n"
      "  #  include \"engine/a.h\"  // why\r\n"
      "// #include \"commented/out.h\"\n"
      "#include MACRO\n"
      "#include \"unfinished\n"
      "#include\"tight.h\"");
  ASSERT_THAT(includes, SizeIs(3));
  EXPECT_EQ(includes[0].target, "vector");
  EXPECT_FALSE(includes[0].quoted);
  EXPECT_EQ(includes[1].target, "engine/a.h");
  EXPECT_TRUE(includes[1].quoted);
  EXPECT_EQ(includes[2].target, "tight.h");
}

// A tree where every file named in the rules exists and `path` includes `target`.
Tree tree_with(const std::string& path, const std::string& target) {
  Tree tree;
  for (const char* file : {"engine/engine.h", "engine/error.h", "engine/kv/cache.h",
                           "engine/text/tokenizer.h", "engine/cuda/gemm.h", "tasks/task.h", "harness/store.h",
                           "harness/runner.h", "harness/commands/run.h", "reports/html.h"})
    tree[file] = "// A header.\n#pragma once\n";
  tree[path] += "#include " + target + "\n";
  return tree;
}

struct Arrow {
  std::string path, target;
};
void PrintTo(const Arrow& arrow, std::ostream* out) { *out << arrow.path << " -> " << arrow.target; }

class AllowedArrow : public testing::TestWithParam<Arrow> {};
TEST_P(AllowedArrow, PassesTheCheck) {
  EXPECT_THAT(check_arrows(tree_with(GetParam().path, GetParam().target)), IsEmpty());
}
INSTANTIATE_TEST_SUITE_P(All, AllowedArrow,
                         testing::Values(Arrow{"engine/cpu/a.cpp", "\"engine/kv/cache.h\""},
                                         Arrow{"engine/model/a.cpp", "\"embedded.h\""},
                                         Arrow{"engine/cuda/a.cu", "<cuda_runtime.h>"},
                                         Arrow{"tasks/a.cpp", "\"engine/text/tokenizer.h\""},
                                         Arrow{"tasks/a.cpp", "\"engine/engine.h\""},
                                         Arrow{"harness/store_read.cpp", "<SQLiteCpp/SQLiteCpp.h>"},
                                         Arrow{"harness/a.cpp", "\"tasks/task.h\""},
                                         Arrow{"harness/a.cpp", "\"engine/kv/cache.h\""},
                                         Arrow{"harness/commands/a.cpp", "\"reports/html.h\""},
                                         Arrow{"harness/commands/a.cpp", "<CLI/CLI.hpp>"},
                                         Arrow{"harness/main.cpp", "\"harness/commands/run.h\""},
                                         Arrow{"reports/a.cpp", "\"harness/store.h\""},
                                         Arrow{"reports/a.cpp", "\"engine/error.h\""}));

class ForbiddenArrow : public testing::TestWithParam<Arrow> {};
TEST_P(ForbiddenArrow, IsNamedWithBothEnds) {
  const auto& [path, target] = GetParam();
  EXPECT_THAT(check_arrows(tree_with(path, target)),
              ElementsAre(AllOf(StartsWith(path + ": "), HasSubstr(target.substr(1, target.size() - 2)))));
}
INSTANTIATE_TEST_SUITE_P(
    All, ForbiddenArrow,
    testing::Values(
        Arrow{"engine/cpu/a.cpp", "\"tasks/task.h\""}, Arrow{"engine/engine.h", "\"harness/store.h\""},
        Arrow{"engine/cpu/a.cpp", "<cuda_runtime.h>"}, Arrow{"engine/cpu/a.cpp", "\"cache.h\""},
        Arrow{"engine/cpu/a.cpp", "\"../kv/cache.h\""}, Arrow{"tasks/a.cpp", "\"engine/kv/cache.h\""},
        Arrow{"tasks/a.cpp", "\"harness/runner.h\""}, Arrow{"harness/runner.h", "\"reports/html.h\""},
        Arrow{"harness/runner.h", "\"harness/commands/run.h\""},
        Arrow{"harness/runner.cpp", "<SQLiteCpp/SQLiteCpp.h>"},
        Arrow{"harness/commands/a.cpp", "<sqlite3.h>"}, Arrow{"harness/runner.cpp", "<CLI/CLI.hpp>"},
        Arrow{"reports/a.cpp", "\"harness/runner.h\""}, Arrow{"reports/a.cpp", "\"tasks/task.h\""},
        Arrow{"reports/a.cpp", "\"engine/engine.h\""}));

TEST(Arrows, AnUnknownFolderIsRefused) {
  EXPECT_THAT(check_arrows({{"utils/a.cpp", ""}}), ElementsAre(HasSubstr("no rule")));
}

TEST(Headers, NeedACommentAndPragmaOnceAndNothingBetween) {
  EXPECT_THAT(check_headers({{"engine/a.h", "// What it is,\n// in two lines.\n\n#pragma once\nint x;\n"}}),
              IsEmpty());
  EXPECT_THAT(check_headers({{"engine/a.cpp", "int x;\n"}}), IsEmpty());
  EXPECT_THAT(check_headers({{"engine/a.h", "#pragma once\n// Too late.\n"}}),
              ElementsAre(HasSubstr("comment")));
  EXPECT_THAT(check_headers({{"engine/a.h", "// A header.\n#include <vector>\n#pragma once\n"}}),
              ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(check_headers({{"engine/a.h", "// A header.\nint x;\n"}}),
              ElementsAre(HasSubstr("#pragma once")));
  EXPECT_THAT(check_headers({{"engine/a.h", ""}}), SizeIs(2));
}

TEST(Cycles, AreNamedOnce) {
  Tree tree = {{"engine/a.h", "#include \"engine/b.h\"\n"},
               {"engine/b.h", "#include \"engine/c.h\"\n"},
               {"engine/c.h", ""},
               {"engine/d.cpp", "#include \"engine/a.h\"\n#include \"engine/c.h\"\n"}};
  EXPECT_THAT(check_cycles(tree), IsEmpty());
  tree["engine/c.h"] = "#include \"engine/a.h\"\n";
  EXPECT_THAT(check_cycles(tree),
              ElementsAre(HasSubstr("engine/a.h -> engine/b.h -> engine/c.h -> engine/a.h")));
  EXPECT_THAT(check_cycles({{"engine/a.h", "#include \"engine/a.h\"\n"}}), SizeIs(1));
}

TEST(Lengths, BeyondTheLimitNeedAReason) {
  const Tree tree = {{"engine/long.cpp", "1\n2\n3\n4"}, {"engine/short.cpp", "1\n2\n3\n"}};
  EXPECT_THAT(check_lengths(tree, 4, {}), IsEmpty());
  EXPECT_THAT(check_lengths(tree, 3, {}),
              ElementsAre(AllOf(StartsWith("engine/long.cpp"), HasSubstr("4 lines"))));
  EXPECT_THAT(check_lengths(tree, 3, {{"engine/long.cpp", "a table"}}), IsEmpty());
  EXPECT_THAT(check_lengths(tree, 3, {{"engine/long.cpp", ""}}), SizeIs(1));
  EXPECT_THAT(check_lengths(tree, 4, {{"engine/long.cpp", "not needed"}}), SizeIs(1));
  EXPECT_THAT(check_lengths(tree, 4, {{"engine/gone.cpp", "a table"}}), SizeIs(1));
}

}  // namespace
}  // namespace kveval::structure
