// The contract of the same bits (chunk, page, threads, fork, SIMD level) on real weights: heads that do not
// fill a tile, grouped keys, quantized matrices, magnitudes that training made.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/kernels.h"
#include "engine/hash.h"
#include "engine/profile.h"
#include "tests/engine/checkpoints.h"

namespace kveval {
namespace {

constexpr const char* kName = "smollm2-135m";
constexpr size_t kTokens = 300, kPrefix = 240;
constexpr const char* kProfiles[] = {"e4m3", "int8"};

// Real text, several times over.
Tokens text_ids() {
  std::ifstream file(std::string(KVEVAL_SOURCE_DIR "/tests/golden/logits-") + kName + "-none.json");
  const Tokens once = nlohmann::json::parse(file)["ids"].get<Tokens>();
  Tokens ids;
  while (ids.size() < kTokens) ids.push_back(once[ids.size() % once.size()]);
  return ids;
}

using Rows = std::vector<std::string>;  // a hash of the logits behind each token of a question but the last

// The same question for each of `branches`.
std::vector<Rows> logits_of(Engine& engine, const std::string& profile, const Tokens& ids, size_t prefix,
                            size_t branches = 1) {
  PromptGroup group;
  group.prefix.tokens.assign(ids.begin(), ids.begin() + std::ptrdiff_t(prefix));
  Turn turn;
  turn.tokens = {ids[prefix]};
  turn.ask = Ask::score;
  turn.target.assign(ids.begin() + std::ptrdiff_t(prefix) + 1, ids.end());
  group.branches.assign(branches, {{turn}});
  std::vector<Rows> rows(branches);
  Events events;
  events.on_logits = [&](size_t branch, size_t, size_t, std::span<const float> logits) {
    rows[branch].push_back(hash_hex({reinterpret_cast<const char*>(logits.data()), logits.size_bytes()}));
  };
  engine.run(group, {}, parse_profile(profile), events);
  return rows;
}

class RealCheckpointSlow : public testing::Test {
 protected:
  static void SetUpTestSuite() { model_ = checkpoint(kName); }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    if (!model_) GTEST_SKIP() << "the checkpoint is not here: scripts/fetch-model " << kName;
    if (expected_.empty())
      for (const char* profile : kProfiles) {
        const auto engine = make_cpu_engine(model_, {.threads = 2});
        expected_.push_back(logits_of(*engine, profile, ids_, kPrefix)[0]);
      }
  }

  void expect_same(const CpuEngineOptions& options, const char* what, size_t tokens = kTokens) {
    const auto engine = make_cpu_engine(model_, options);
    const Tokens ids(ids_.begin(), ids_.begin() + std::ptrdiff_t(tokens));
    for (size_t p = 0; p < std::size(kProfiles); ++p) {
      const Rows rows = logits_of(*engine, kProfiles[p], ids, kPrefix)[0];
      ASSERT_EQ(rows.size(), tokens - kPrefix - 1);
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected_[p].begin())) << what << ", " << kProfiles[p];
    }
  }

  const Tokens ids_ = text_ids();
  static std::shared_ptr<const Model> model_;
  static std::vector<Rows> expected_;  // [profile]
};
std::shared_ptr<const Model> RealCheckpointSlow::model_;
std::vector<Rows> RealCheckpointSlow::expected_;

TEST_F(RealCheckpointSlow, AnyChunk) {
  expect_same({.threads = 2, .chunk_tokens = 1}, "chunks of 1");
  expect_same({.threads = 2, .chunk_tokens = 64}, "chunks of 64");
  expect_same({.threads = 2, .chunk_tokens = 77}, "chunks of 77");
}

TEST_F(RealCheckpointSlow, AnyPage) {
  expect_same({.threads = 2, .page_tokens = 64}, "pages of 64");
  expect_same({.threads = 2, .page_tokens = 256}, "pages of 256");
}

TEST_F(RealCheckpointSlow, AnyThreads) {
  expect_same({.threads = 1}, "1 thread");
  expect_same({.threads = 3}, "3 threads");
}

TEST_F(RealCheckpointSlow, ForkedOrAlone) {
  const auto engine = make_cpu_engine(model_, {.threads = 2});
  for (size_t p = 0; p < std::size(kProfiles); ++p) {
    for (const Rows& rows : logits_of(*engine, kProfiles[p], ids_, kPrefix, 3)) EXPECT_EQ(rows, expected_[p]);
    // Another place to fork at: what stood in the question now stands in the prefix.
    const Rows later = logits_of(*engine, kProfiles[p], ids_, kPrefix + 30)[0];
    EXPECT_TRUE(std::equal(later.begin(), later.end(), expected_[p].begin() + 30)) << kProfiles[p];
  }
}

TEST_F(RealCheckpointSlow, AnySimdLevel) {
  for (const char* level : {"avx2", "avx512"})
    if (const cpu::Kernels* const kernels = cpu::kernels_named(level))
      expect_same({.threads = 2, .kernels = kernels}, level);
}

TEST_F(RealCheckpointSlow, TheScalarOracle) {
  expect_same({.threads = 2, .kernels = cpu::kernels_named("scalar")}, "scalar", kPrefix + 4);
}

}  // namespace
}  // namespace kveval
