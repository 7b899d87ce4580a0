// Files that mean harm or were damaged, as a whole model: numbers that no arithmetic carries, tables that
// take more memory or time than their file, files that change while they are used, and random damage to every
// tiny checkpoint. Each is a Model or one Error.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>

#include "engine/cpu/cpu_engine.h"
#include "engine/error.h"
#include "engine/model/catalog.h"
#include "engine/model/finite.h"
#include "engine/model/gguf_model.h"
#include "engine/model/hf_model.h"
#include "engine/random.h"
#include "engine/text/tokenizer_json.h"
#include "engine/text/tokenizer_json_parser.h"
#include "tests/engine/allocation_count.h"
#include "tests/engine/hf_directory.h"
#include "tests/engine/small_gguf.h"
#include "tests/engine/small_vocabularies.h"

#ifndef KVEVAL_TINY
#define KVEVAL_TINY ""
#endif

namespace kveval {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

std::string refusal(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) { return error.what(); }
  return "(accepted)";
}

// ------------------------------------------------------------------------------------------------- numbers

using HostileGguf = SmallGgufTest;

TEST_F(HostileGguf, WeightsThatAreNoNumbersAreNamed) {
  const float kBad[] = {std::nanf(""), HUGE_VALF, -HUGE_VALF};
  const SmallGguf right = small_gguf("qwen2", 1);
  size_t turn = 0;
  for (const auto& [name, info] : right.tensors) {
    SmallGguf wrong = right;
    std::string& data = wrong.tensors[name].data;
    std::memcpy(data.data() + data.size() - sizeof(float), &kBad[turn++ % 3], sizeof(float));
    EXPECT_THAT(refusal(wrong), HasSubstr("tensor '" + name + "' holds values that are not finite numbers"));
  }
}

// Every weight is a number, keys and values too; what comes out behind them is none.
TEST_F(HostileGguf, LogitsThatAreNoNumbersAreNoAnswer) {
  SmallGguf file = small_gguf("llama", 1);
  file.tensor("output_norm.weight", {128}, 3e38f);
  const auto engine = make_cpu_engine(std::make_shared<Model>(load(file)), {.threads = 1});
  for (const Ask ask : {Ask::score, Ask::generate}) {
    PromptGroup group;
    group.prefix.tokens = {1, 2, 3};
    group.branches = {{{{{4}, {}, ask, {5, 6}}}}};
    EXPECT_THAT(kveval::refusal([&] { engine->run(group, {}, parse_profile("fp16"), {}); }),
                HasSubstr("model.gguf: made logits that are not finite numbers"));
  }
}

TEST(HostileHf, WeightsThatAreNoNumbersAreNamed) {
  for (const char* dtype : {"F32", "F16", "BF16"}) {
    HfDirectory directory = hf_directory("llama");
    std::vector<float> values(64, 1.0f);
    values[17] = HUGE_VALF;
    directory.tensors["model.norm.weight"] = stored(values, {64}, dtype);
    const TemporaryFolder folder;
    const std::string path = directory.write(folder);
    EXPECT_THAT(
        refusal([&] { read_hf_model(path); }),
        AllOf(HasSubstr(path), HasSubstr("tensor 'model.norm.weight' holds values that are not finite")));
  }
}

// Wherever a block's halves are: exactly the blocks whose decoded values are not all finite are refused.
TEST(Finite, OfEveryTypeAsItsDecoderSays) {
  Random random(11);
  for (int number = 0; number < kTensorTypes; ++number) {
    const auto type = TensorType(number);
    const TypeInfo& info = info_of(type);
    const int64_t elements = std::max(info.block_elements, 32);
    size_t refused = 0;
    for (int i = 0; i < 400; ++i) {
      std::vector<std::byte> bytes(size_t(elements / info.block_elements) * size_t(info.block_bytes) * 2);
      for (std::byte& byte : bytes) byte = std::byte(random.next() % 4 == 0 ? 0x7c : random.next());
      const Tensor tensor{.name = "t", .type = type, .shape = {2, elements}, .data = bytes, .owner = {}};
      bool all = true;
      std::vector<float> row(size_t(elements), 0.0f);
      for (int64_t r = 0; r < 2; ++r) {
        dequantize_row(tensor, r, row.data());
        for (const float value : row) all = all && std::isfinite(value);
      }
      // A half that a factor of 0 hides is infinite all the same, but 0 times it is NaN: nothing hides.
      EXPECT_EQ(is_finite(tensor), all) << info.name;
      refused += !is_finite(tensor);
    }
    EXPECT_GT(refused, 0u) << info.name;
  }
}

TEST_F(HostileGguf, NumbersThatLeaveTheArithmetic) {
  const auto says = [&](const std::function<void(SmallGguf&)>& change, const char* text) {
    SmallGguf file = small_gguf("llama", 1);
    change(file);
    EXPECT_THAT(refusal(file), HasSubstr(text));
  };
  says([](SmallGguf& f) { f.set("rope.scaling.factor", 1e-45f); }, "radians a token");
  says([](SmallGguf& f) { f.set("rope.scaling.factor", 1e-5f); }, "radians a token: over 256 tokens");
  says(
      [](SmallGguf& f) {
        f.tensor("rope_freqs.weight", {32}, 1),
            f.tensors["rope_freqs.weight"].data.replace(0, 4, raw(1e-30f));
      },
      "radians a token");
  says([](SmallGguf& f) { f.set("context_length", (1u << 23) + 1); },
       "'llama.context_length' has the value 8388609");
  says(
      [](SmallGguf& f) {
        f.set("rope.scaling.type", "yarn")
            .set("rope.scaling.factor", 4.f)
            .set("rope.scaling.attn_factor", 3.4e38f);
        f.set("rope.scaling.original_context_length", 128u);
      },
      "makes pairs");
  says([](SmallGguf& f) { f.set("context_length", 1u << 23).set("rope.freq_base", 3e38f); }, "(accepted)");
  says([](SmallGguf& f) { f.set("rope.scaling.factor", 3e38f); }, "(accepted)");
}

TEST(HostileHf, NumbersThatLeaveTheArithmetic) {
  const auto says = [](const char* type, const char* change, const char* text) {
    HfDirectory directory = hf_directory(type);
    directory.config.update(nlohmann::json::parse(change));
    const TemporaryFolder folder;
    const std::string path = directory.write(folder);
    EXPECT_THAT(refusal([&] { read_hf_model(path); }), AllOf(HasSubstr(path), HasSubstr(text)));
  };
  says("gemma3_text", R"({"query_pre_attn_scalar": 1e-200})", "attention scores are scaled by 1e+100");
  says("llama", R"({"rms_norm_eps": 1e-300})", "the epsilon of its norms is 0");
  says("llama", R"({"max_position_embeddings": 16777216})", "'16777216', no whole number from 1 to 8388608");
  says("llama",
       R"({"rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64,
           "attention_factor": 1e300}})",
       "makes pairs 1e+300 times as long");
  says("llama", R"({"hidden_size": 1})", "'hidden_size' is 1; kveval knows 64 and more");
}

// ----------------------------------------------------------------------------------------- memory and time

// Peak above what was there, over the file's size.
void expect_within_budget(const std::string& name, size_t file_bytes, const std::function<void()>& act) {
  const size_t before = allocated_bytes();
  reset_peak_allocated_bytes();
  refusal(act);
  // The constant: GPT-2's alphabet and patterns, a chat template, a document of 2^18 JSON values.
  EXPECT_LE(peak_allocated_bytes() - before, 4 * file_bytes + (48u << 20)) << name;
}

TEST_F(HostileGguf, NoTableTakesMoreThanFourTimesTheFile) {
  const auto budget = [&](const std::string& name, const SmallGguf& file) {
    const std::string bytes = file.file(), path = folder_.write("model.gguf", bytes);
    expect_within_budget(name, bytes.size(), [&] { read_gguf_model(path); });
  };
  std::string jinja = "{{'<|im_start|>'}}";
  for (int i = 0; i < 1'500'000; ++i) jinja += "{{''}}";
  budget("a template of empty literals", small_gguf("llama", 1).set("tokenizer.chat_template", jinja));
  budget("merges",
         small_gguf("llama", 1).set("tokenizer.ggml.merges", std::vector<std::string>(kMaxMerges + 1)));
  SmallGguf kinds = small_gguf("gemma3", 1);
  std::string many;
  many.resize(16'000'000, '\x01');
  kinds.keys["tokenizer.ggml.token_type"] =
      raw(uint32_t(9)) + raw(uint32_t(1)) + raw(uint64_t(many.size())) + many;
  budget("kinds of a byte each", kinds);
  budget("a context of millions", small_gguf("gemma3", 1).set("context_length", 1u << 23));
}

TEST(HostileHf, NoTableTakesMoreThanFourTimesTheFile) {
  const auto budget = [&](const std::string& name, const std::string& text) {
    expect_within_budget(name, text.size(), [&] { make_tokenizer(read_tokenizer_json(text)); });
  };
  const nlohmann::json right = byte_level_json(byte_level_vocabulary("gpt-2", {{"t", "h"}}));
  std::string zeros = "[0";
  for (int i = 0; i < 300'000; ++i) zeros += ",0";
  nlohmann::json changed = right;
  changed["model"]["unknown"] = std::string(4'000'000, 'a');
  budget("one long text", changed.dump());
  budget("numbers", "{\"added_tokens\":" + zeros + "]}");
  std::string keys = "{\"a\":{\"z\":0";
  for (int i = 0; i < 300'000; ++i) keys += fmt::format(",\"{}\":0", i);
  budget("members", keys + "}}");
  budget("depth", "{\"a\":" + std::string(4'000'000, '['));
}

TEST_F(HostileGguf, TokenizersBeyondTheLimitsAreRefused) {
  SmallGguf llama = small_gguf("llama", 1);
  EXPECT_THAT(refusal(llama.set("tokenizer.ggml.merges", std::vector<std::string>(kMaxMerges + 1))),
              HasSubstr("'tokenizer.ggml.merges' has 2097153 merges, at most 2097152"));
  for (const PieceKind kind : {PieceKind::normal, PieceKind::control, PieceKind::user_defined}) {
    SmallGguf gemma = small_gguf("gemma3", 1);
    Vocabulary vocabulary = sentencepiece_vocabulary({"a", "b", "_", "ab"});
    vocabulary.pieces.push_back(std::string(2'000'000, 'a'));
    vocabulary.kinds.push_back(kind);
    vocabulary.scores.push_back(0);
    EXPECT_THAT(refusal(gemma.set_vocabulary(vocabulary)), HasSubstr("has a piece of 2000000 bytes, 263"));
  }
  const Model model = load(small_gguf("llama", 1).set("tokenizer.chat_template", std::string(300'000, ' ')));
  ASSERT_TRUE(model.chat_error);
  EXPECT_THAT(model.chat_error->what(), HasSubstr("is longer than the limit of 262144 bytes"));
}

// llama.cpp #26690 casts these to pointers of the type that it expects; tokens counted in 32 bits wrapped
// (CVE-2025-52566).
TEST_F(HostileGguf, TokenizerTablesOfOtherTypesOrLengths) {
  const auto says = [&](const std::function<void(SmallGguf&)>& change, const char* text) {
    SmallGguf file = small_gguf("gemma3", 1);
    change(file);
    EXPECT_THAT(refusal(file), HasSubstr(text));
  };
  says([](SmallGguf& f) { f.set("tokenizer.ggml.scores", std::vector<int32_t>(264)); },
       "'tokenizer.ggml.scores' is an array whose element is an integer where a 32-bit float is needed");
  says([](SmallGguf& f) { f.set("tokenizer.ggml.scores", 1.0f); },
       "'tokenizer.ggml.scores' is a float where");
  says([](SmallGguf& f) { f.set("tokenizer.ggml.scores", std::vector<float>(264, NAN)); },
       "element 0 of key 'tokenizer.ggml.scores' is not finite");
  says([](SmallGguf& f) { f.set("tokenizer.ggml.token_type", std::vector<float>(264, 1)); },
       "'tokenizer.ggml.token_type' is an array whose element is a float where an integer is needed");
  says([](SmallGguf& f) { f.set("tokenizer.ggml.token_type", std::vector<int32_t>(263, 1)); },
       "263 kinds of pieces");
  says([](SmallGguf& f) { f.set("tokenizer.ggml.tokens", std::vector<int32_t>(264)); },
       "'tokenizer.ggml.tokens' is an array whose element is an integer where a text is needed");
  says(
      [](SmallGguf& f) {
        f.keys["tokenizer.ggml.tokens"] = raw(uint32_t(9)) + raw(uint32_t(8)) + raw(uint64_t(1) << 31);
      },
      "2147483648 elements, more than the file can hold");
  says([](SmallGguf& f) { f.set("block_count", 513u); }, "tensor 'blk.1.attn_norm.weight' is missing");
  says([](SmallGguf& f) { f.set("rope.scaling.factor", -2.f); }, "'gemma3.rope.scaling.factor' is -2");
}

// Looking for the ways to make a piece takes time quadratic in its length.
TEST(HostileHf, AVeryLongPieceIsRefused) {
  const std::string text = R"({"model":{"vocab":{")" + std::string(4'000'000, 'a') + R"(":0}}})";
  EXPECT_THAT(refusal([&] { read_tokenizer_json(text); }),
              HasSubstr("has a piece of more than 1024 bytes, 'aaa"));
}

TEST_F(HostileGguf, WhatIsNoFileOrDirectory) {
  const std::string at = folder_.path() + "/";
  ASSERT_EQ(mkfifo((at + "fifo").c_str(), 0600), 0);
  fs::create_symlink("nowhere", at + "dangling");
  fs::create_symlink("loop", at + "loop");
  const auto says = [&](const std::string& path, const char* text) {
    EXPECT_THAT(kveval::refusal([&] { load_model(path); }), HasSubstr(path + ": " + text));
  };
  says(at + "fifo", "is neither a file nor a directory");
  says("/dev/null", "is neither a file nor a directory");
  says(at + "dangling", "is a link to nothing");
  says(at + "loop", "is a link to nothing");
  says(folder_.write("empty", ""), "is empty");
  fs::create_symlink("fifo", at + "config.json");
  says(at + "config.json", "is neither a file nor a directory");
  EXPECT_THAT(kveval::refusal([&] { load_model(folder_.path()); }),
              HasSubstr("config.json: is not a regular file"));
}

// A sparse file costs its writer nothing.
TEST_F(HostileGguf, AHugeFileOfZerosIsRefusedByItsHeader) {
  const std::string path = folder_.write("sparse", "GGUF\x03");
  ASSERT_EQ(truncate(path.c_str(), off_t(1) << 40), 0);
  EXPECT_NE(kveval::refusal([&] { load_model(path); }), "(accepted)");
  const std::string config = folder_.write("config.json", "{");
  ASSERT_EQ(truncate(config.c_str(), off_t(1) << 30), 0);
  EXPECT_THAT(kveval::refusal([&] { load_model(folder_.path()); }),
              HasSubstr("more than the limit of 16777216"));
}

// --------------------------------------------------------------------------------- files that change
// meanwhile

// The embedding is read from the file during the whole run.
TEST_F(HostileGguf, AFileThatChangesDuringARunFailsIt) {
  const auto run = [&](const std::function<void(const std::string&)>& change) {
    const std::string path = folder_.write("model.gguf", small_gguf("llama", 1).file());
    const auto engine = make_cpu_engine(load_model(path), {.threads = 1});
    PromptGroup group;
    group.prefix.tokens = {1, 2, 3};
    group.branches = {{{{{4}, {}, Ask::score, {5, 6}}}}};
    change(path);
    return kveval::refusal([&] { engine->run(group, {}, parse_profile("fp16"), {}); });
  };
  EXPECT_EQ(run([](const std::string&) {}), "(accepted)");
  EXPECT_THAT(run([](const std::string& path) { ASSERT_EQ(truncate(path.c_str(), 40'000), 0); }),
              HasSubstr("lost bytes"));
  EXPECT_THAT(run([](const std::string& path) {
                ASSERT_EQ(truncate(path.c_str(), off_t(fs::file_size(path)) - 8), 0);
              }),
              HasSubstr("lost bytes"))
      << "inside the last page no signal tells";
  EXPECT_THAT(run([](const std::string& path) {
                fs::last_write_time(path, fs::last_write_time(path) - std::chrono::hours(1));
                std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-8, std::ios::end)
                    << 'x';
              }),
              HasSubstr("was written to"));
  EXPECT_EQ(run([](const std::string& path) { fs::remove(path); }), "(accepted)")
      << "its bytes are still there";
}

// ------------------------------------------------------------------------------------------------ random
// damage

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Bytes near the beginning, where the meaning is, or a shorter file.
std::string damaged(std::string bytes, Random& random) {
  if (random.below(8) == 0) return bytes.substr(0, 1 + random.below(bytes.size() - 1));
  const size_t reach = std::min<size_t>(bytes.size(), size_t(64) << random.below(13));
  for (uint64_t n = 1 + random.below(4); n > 0; --n) {
    char& byte = bytes[random.below(reach)];
    byte = random.below(2) == 0 ? char(byte ^ (1 << random.below(8))) : char(random.next());
  }
  return bytes;
}

// One of the files of a checkpoint damaged, the others as they are: a Model that runs, or one Error.
void load_damaged(const fs::path& original, Random& random, size_t& accepted) {
  const TemporaryFolder folder;
  const bool is_directory = fs::is_directory(original);
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(is_directory ? original : original.parent_path()))
    if (entry.is_regular_file() && (is_directory || entry.path().extension() == ".gguf"))
      files.push_back(entry.path());
  std::ranges::sort(files);
  const fs::path victim = files[random.below(files.size())], at = folder.path();
  for (const fs::path& file : files)
    if (file != victim) fs::create_symlink(file, at / file.filename());
  folder.write(victim.filename().string(), damaged(bytes_of(victim), random));
  const fs::path copy = is_directory ? at : at / original.filename();
  const size_t before = allocated_bytes();
  reset_peak_allocated_bytes();
  try {
    const auto model = load_model(copy.string());
    ++accepted;
    ASSERT_TRUE(model->tokenizer);
    ASSERT_EQ(model->tokenizer->vocabulary_size(), model->config.vocabulary);
    model->tokenizer->decode(model->tokenizer->encode("A few words, 12 \xf0\x9f\x98\x80."));
    PromptGroup group;
    group.prefix.tokens = {1, 2};
    group.branches = {{{{{1}, {}, Ask::score, {2}}}}};
    make_cpu_engine(model, {.threads = 1})->run(group, {}, parse_profile("fp16"), {});
  } catch (const Error& error) { ASSERT_NE(std::string(error.what()), ""); }
  ASSERT_LE(peak_allocated_bytes() - before, 160u << 20) << victim;  // two RoPE tables of the longest context
}

uintmax_t largest_file(const fs::path& model) {
  if (!fs::is_directory(model)) return fs::file_size(model);
  uintmax_t largest = 0;
  for (const auto& entry : fs::directory_iterator(model)) largest = std::max(largest, entry.file_size());
  return largest;
}

// Of the checkpoints with files of at most `most_bytes`, one after the other.
void damage_checkpoints(size_t times, uint64_t seed, uintmax_t most_bytes) {
  if (std::string(KVEVAL_TINY).empty()) GTEST_SKIP() << "no python3 with numpy: scripts/install-deps --dev";
  std::vector<fs::path> models;
  std::ifstream cases(KVEVAL_TINY "/cases.json");
  for (const auto& one : nlohmann::json::parse(cases))
    for (const char* form : {"gguf", "hf"}) {
      if (one[form].is_null()) continue;
      const fs::path model = fs::path(KVEVAL_TINY) / one[form].get<std::string>();
      if (largest_file(model) <= most_bytes) models.push_back(model);
    }
  ASSERT_GE(models.size(), 20u);
  Random random(seed);
  size_t accepted = 0;
  for (size_t i = 0; i < times; ++i) {
    SCOPED_TRACE(fmt::format("seed {} number {}", seed, i));
    load_damaged(models[i % models.size()], random, accepted);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(accepted, times / 50);
  EXPECT_LT(accepted, times / 10 * 9);
}

TEST(DamagedCheckpoints, AreAModelOrOneError) { damage_checkpoints(200, 1, 2'000'000); }

// KVEVAL_DAMAGE_SEED tries others.
TEST(DamagedCheckpointsSlow, AreAModelOrOneError) {
  const char* const seed = std::getenv("KVEVAL_DAMAGE_SEED");
  damage_checkpoints(1000, seed == nullptr ? 2 : std::strtoull(seed, nullptr, 10), UINTMAX_MAX);
}

}  // namespace
}  // namespace kveval
