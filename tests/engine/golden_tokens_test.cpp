// Token ids that other implementations gave for the real checkpoints, with BOS left out and special tokens in
// the text not recognised.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/engine/checkpoints.h"

namespace kveval {
namespace {

class GoldenTokens : public testing::TestWithParam<const char*> {};

TEST_P(GoldenTokens, EveryIdAgrees) {
  std::ifstream rows(std::string(KVEVAL_SOURCE_DIR "/tests/golden/tokens-") + GetParam() + ".jsonl");
  ASSERT_TRUE(rows);
  KVEVAL_NEED_CHECKPOINT(model, GetParam());
  size_t count = 0;
  for (std::string line; std::getline(rows, line); ++count) {
    const nlohmann::json row = nlohmann::json::parse(line);
    EXPECT_EQ(model->tokenizer->encode(row["text"].get<std::string>()), row["ids"].get<Tokens>()) << line;
  }
  EXPECT_GE(count, 118u);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenTokens,
                         testing::Values("smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b"));

}  // namespace
}  // namespace kveval
