// Token ids that other implementations gave for the real checkpoints, with BOS left out and special tokens in
// the text not recognised.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "engine/text/tokenizer_json.h"
#include "engine/text/vocabulary.h"

namespace kveval {
namespace {

struct Checkpoint {
  const char* name;      // tests/golden/tokens-NAME.jsonl
  const char* variable;  // names a tokenizer.json of this checkpoint
};
void PrintTo(const Checkpoint& checkpoint, std::ostream* out) { *out << checkpoint.name; }

std::optional<Vocabulary> load(const Checkpoint& checkpoint) {
  const char* const path = std::getenv(checkpoint.variable);
  if (!path) return std::nullopt;
  std::ifstream file(path, std::ios::binary);
  return read_tokenizer_json(std::string(std::istreambuf_iterator<char>(file), {}));
}

class GoldenTokens : public testing::TestWithParam<Checkpoint> {};

TEST_P(GoldenTokens, EveryIdAgrees) {
  std::ifstream rows(std::string(KVEVAL_SOURCE_DIR "/tests/golden/tokens-") + GetParam().name + ".jsonl");
  ASSERT_TRUE(rows);
  const auto vocabulary = load(GetParam());
  if (!vocabulary) GTEST_SKIP() << "set " << GetParam().variable << " to the checkpoint's tokenizer.json";
  const auto tokenizer = make_tokenizer(*vocabulary);
  size_t count = 0;
  for (std::string line; std::getline(rows, line); ++count) {
    const nlohmann::json row = nlohmann::json::parse(line);
    EXPECT_EQ(tokenizer->encode(row["text"].get<std::string>()), row["ids"].get<Tokens>()) << line;
  }
  EXPECT_GE(count, 118u);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokens,
                         testing::Values(Checkpoint{"smollm2-135m", "KVEVAL_SMOLLM2_TOKENIZER"},
                                         Checkpoint{"gemma3-270m", "KVEVAL_GEMMA3_TOKENIZER"},
                                         Checkpoint{"qwen2.5-coder-1.5b", "KVEVAL_QWEN25_TOKENIZER"}));

}  // namespace
}  // namespace kveval
