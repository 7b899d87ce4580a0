// Tiny checkpoints of every architecture and tensor type, which tests/golden/tiny_checkpoints.py writes while
// the tests are built, against its float64 forward pass.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "engine/cpu/cpu_engine.h"
#include "engine/engine.h"
#include "engine/error.h"
#include "engine/model/catalog.h"
#include "engine/model/weights.h"
#include "engine/profile.h"
#include "engine/text/tokenizer.h"

#ifndef KVEVAL_TINY
#define KVEVAL_TINY ""
#endif

namespace kveval {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Logits = std::vector<std::vector<float>>;  // [position][vocabulary]

constexpr double kClose = 1e-4;  // the worst, twelve layers of gemma3, reaches 4e-5

json read_json(const std::string& name) {
  std::ifstream file(std::string(KVEVAL_TINY "/") + name);
  if (!file) throw Error(ErrorKind::bad_file, name + " is missing; build the target tiny_checkpoints");
  return json::parse(file);
}

class TinyCheckpoints : public testing::Test {
 protected:
  void SetUp() override {
    if (std::string(KVEVAL_TINY).empty())
      GTEST_SKIP() << "no python3 with numpy when CMake ran: scripts/install-deps --dev";
    cases_ = read_json("cases.json");
    ASSERT_GE(cases_.size(), 20u);
  }
  json cases_;
};

// What the case exists as: "gguf", "hf" or both.
std::map<std::string, std::shared_ptr<const Model>> load_forms(const json& one) {
  std::map<std::string, std::shared_ptr<const Model>> models;
  for (const char* form : {"gguf", "hf"}) {
    if (one[form].is_null()) continue;
    const std::string path = one[form];
    SCOPED_TRACE(path);
    try {
      models[form] = load_model(std::string(KVEVAL_TINY "/") + path);
    } catch (const Error& error) { ADD_FAILURE() << error.what() << " " << error.hint; }
  }
  return models;
}

// Behind each of `ids` but the first `prefix`; those rows are empty. An engine wants a token in the prefix
// and one in the question.
Logits logits_of(const std::shared_ptr<const Model>& model, const Tokens& ids, size_t prefix,
                 const CpuEngineOptions& options) {
  const auto question = ids.begin() + std::ptrdiff_t(prefix);
  Turn turn{{*question}, {}, Ask::score, {question + 1, ids.end()}};
  turn.target.push_back(0);  // any token: asks for the logits behind the last one too
  PromptGroup group;
  group.prefix.tokens.assign(ids.begin(), question);
  group.branches = {{{turn}}};
  Logits logits(ids.size());
  Events events;
  events.on_logits = [&](size_t, size_t, size_t position, std::span<const float> row) {
    logits.at(prefix + position).assign(row.begin(), row.end());
  };
  make_cpu_engine(model, options)->run(group, {}, parse_profile("f32"), events);
  return logits;
}

// INFINITY when any row behind the first is missing, of another size or no number.
double largest_difference(const Logits& logits, const json& expected) {
  double largest = 0;
  for (size_t i = 1; i < logits.size(); ++i) {
    if (logits[i].size() != expected.at(i).size()) return INFINITY;
    for (size_t token = 0; token < logits[i].size(); ++token) {
      const double difference = std::abs(logits[i][token] - expected[i][token].get<double>());
      if (!(difference <= largest)) largest = std::isnan(difference) ? INFINITY : difference;
    }
  }
  return largest;
}

bool same_bits_from(size_t first, const Logits& a, const Logits& b) {
  for (size_t i = first; i < a.size(); ++i) {
    if (a[i].empty() || a[i].size() != b.at(i).size()) return false;
    for (size_t token = 0; token < a[i].size(); ++token)
      if (std::bit_cast<uint32_t>(a[i][token]) != std::bit_cast<uint32_t>(b[i][token])) return false;
  }
  return true;
}

TEST_F(TinyCheckpoints, EveryLogitIsTheMathematics) {
  double largest = 0;
  for (const json& one : cases_) {
    const json expected = read_json(one["expected"]);
    const Tokens ids = expected["ids"];
    std::vector<Logits> of_forms;
    for (const auto& [form, model] : load_forms(one)) {
      SCOPED_TRACE(one["name"].get<std::string>() + ", " + form);
      const Logits logits = logits_of(model, ids, 1, {.threads = 1});
      const double difference = largest_difference(logits, expected["logits"]);
      EXPECT_LE(difference, kClose);
      largest = std::max(largest, difference);
      // Prefix, chunks and windows begin and end anywhere.
      const Logits in_pieces =
          logits_of(model, ids, 19, {.threads = 2, .chunk_tokens = 5, .page_tokens = 64});
      EXPECT_TRUE(same_bits_from(19, logits, in_pieces)) << "chunks of 5 tokens change it";
      of_forms.push_back(logits);
    }
    // llama's rows are in another order in a GGUF file, so that sums round differently.
    if (of_forms.size() == 2 && one["architecture"] != "llama") {
      EXPECT_TRUE(same_bits_from(1, of_forms[0], of_forms[1]))
          << one["name"] << ": the same weights in two files";
    }
  }
  RecordProperty("largest_difference", std::to_string(largest));
}

TEST_F(TinyCheckpoints, BothFilesOfACaseAreTheSameModel) {
  for (const json& one : cases_) {
    SCOPED_TRACE(one["name"].get<std::string>());
    const json texts = read_json(one["expected"])["texts"];
    const auto models = load_forms(one);
    for (const auto& [form, model] : models) {
      EXPECT_EQ(model->config.architecture, one["architecture"]) << form;
      EXPECT_EQ(has_tied_head(model->weights), one["tied"].get<bool>()) << form;
      EXPECT_EQ(model->chat.family, one["chat"]) << form;
      EXPECT_FALSE(model->chat_error) << form;
      ASSERT_TRUE(model->tokenizer) << form;
      EXPECT_EQ(model->tokenizer->vocabulary_size(), model->config.vocabulary) << form;
      for (const json& row : texts) {
        const Tokens ids = model->tokenizer->encode(row["text"].get<std::string>());
        EXPECT_EQ(ids, row["ids"].get<Tokens>()) << form << ": " << row["text"];
        EXPECT_EQ(model->tokenizer->decode(ids), row["text"]) << form;
      }
    }
    if (models.size() != 2) continue;
    const Model &gguf = *models.at("gguf"), &hf = *models.at("hf");
    EXPECT_EQ(gguf.config.context, hf.config.context);
    EXPECT_EQ(gguf.config.head_dim, hf.config.head_dim);
    EXPECT_EQ(gguf.tokenizer->bos(), hf.tokenizer->bos());
    EXPECT_EQ(gguf.tokenizer->eos(), hf.tokenizer->eos());
  }
}

TEST_F(TinyCheckpoints, ScalesOfTheCacheAreFoundUnderEachName) {
  size_t with_scales = 0;
  for (const json& one : cases_) {
    SCOPED_TRACE(one["name"].get<std::string>());
    for (const auto& [form, model] : load_forms(one)) {
      const CacheScales& scales = model->cache_scales;
      if (!one.contains("scales")) {
        EXPECT_TRUE(scales.k.empty() && scales.v.empty() && scales.names.empty());
        continue;
      }
      ++with_scales;
      EXPECT_EQ(scales.k, one["scales"]["k"].get<std::vector<float>>());
      EXPECT_EQ(scales.v, one["scales"]["v"].get<std::vector<float>>());
      for (const json& name : one["scales"]["names"])
        EXPECT_THAT(scales.names, HasSubstr(name.get<std::string>()));
    }
  }
  EXPECT_EQ(with_scales, 4u);
}

}  // namespace
}  // namespace kveval
