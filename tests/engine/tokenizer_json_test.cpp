#include "engine/text/tokenizer_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/error.h"
#include "engine/random.h"
#include "engine/text/utf8.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

json sequence(const char* list, json steps) { return {{"type", "Sequence"}, {list, std::move(steps)}}; }
json split(const std::string& pattern) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
}
json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

// With every way to make a piece of two as a merge, in the pieces' order.
json sentencepiece_json(const Vocabulary& vocabulary) {
  json document = model_json(vocabulary, {PieceKind::control, PieceKind::unknown, PieceKind::user_defined});
  json& model = document["model"];
  model["byte_fallback"] = true;
  model["fuse_unk"] = true;
  model["unk_token"] = "<unk>";
  model["merges"] = json::array();
  for (const std::string& piece : vocabulary.pieces)
    for (size_t at = first_character(piece); at < piece.size(); at += first_character(piece.substr(at)))
      if (model["vocab"].contains(piece.substr(0, at)) && model["vocab"].contains(piece.substr(at)))
        model["merges"].push_back({piece.substr(0, at), piece.substr(at)});
  document["normalizer"] = replace(" ", "\u2581");
  document["pre_tokenizer"] = {{"type", "Split"},
                               {"pattern", {{"String", " "}}},
                               {"behavior", "MergedWithPrevious"},
                               {"invert", false}};
  document["decoder"] =
      sequence("decoders", {replace("\u2581", " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  return document;
}

Vocabulary some_byte_level(const std::string& pre_tokenizer) {
  return byte_level_vocabulary(pre_tokenizer,
                               {{"t", "h"}, {"th", "e"}, {" ", "the"}, {"1", "2"}, {"\n", "\n"}});
}
Vocabulary some_sentencepiece() {
  return sentencepiece_vocabulary({"_", "t", "h", "e", "th", "he", "the", "_the", "__"});
}

const std::vector<std::string> kTexts = {"the  the\n\n12 123!", "e\u0301\u4e2d<s></s>", " the", "",
                                         "\u2581the  "};

void expect_same(const Tokenizer& a, const Tokenizer& b) {
  for (const std::string& text : kTexts) {
    EXPECT_EQ(a.encode(text), b.encode(text)) << text;
    const std::vector<PromptPart> parts = {{"<s>the</s>", true}, {text, false}};
    EXPECT_EQ(a.encode_prompt(parts), b.encode_prompt(parts)) << text;
    EXPECT_EQ(a.decode(a.encode(text)), b.decode(b.encode(text)));
  }
  EXPECT_EQ(a.vocabulary_size(), b.vocabulary_size());
}

TEST(TokenizerJson, ByteLevelIsTheVocabularyThatItWasWrittenFrom) {
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
    Vocabulary expected = some_byte_level(name);
    expected.nfc = false;
    expected.ignore_merges = false;
    expected.add_bos = false;
    json document = byte_level_json(expected);
    json& pre_tokenizer = document["pre_tokenizer"];
    if (expected.pre_tokenizer == "smollm")
      pre_tokenizer =
          sequence("pretokenizers", {{{"type", "Digits"}, {"individual_digits", true}}, pre_tokenizer});
    if (expected.pre_tokenizer == "qwen2")
      pre_tokenizer = sequence("pretokenizers", {split(kQwen2Pattern), byte_level_step(false)});
    if (expected.pre_tokenizer == "llama-bpe")
      pre_tokenizer = sequence("pretokenizers", {split(kLlama3Pattern), byte_level_step(false)});
    const Vocabulary read = read_tokenizer_json(document.dump());
    EXPECT_EQ(read.pre_tokenizer, name);
    EXPECT_EQ(read.merges, expected.merges);
    expect_same(*make_tokenizer(read), *make_tokenizer(expected));
  }
}

TEST(TokenizerJson, OptionsOfByteLevelModelsAreRead) {
  const Vocabulary vocabulary = some_byte_level("gpt-2");
  json document = byte_level_json(vocabulary);
  EXPECT_EQ(read_tokenizer_json(document.dump()).nfc, false);
  EXPECT_EQ(read_tokenizer_json(document.dump()).add_bos, false);
  document["normalizer"] = {{"type", "NFC"}};
  document["model"]["ignore_merges"] = true;
  document["model"]["unk_token"] = "</s>";
  document["post_processor"] = sequence("processors", {byte_level_step(true),
                                                       {{"type", "TemplateProcessing"},
                                                        {"single",
                                                         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                                          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
                                                        {"pair", json::array()},
                                                        {"special_tokens", json::object()}}});
  const Vocabulary read = read_tokenizer_json(document.dump());
  EXPECT_EQ(read.nfc, true);
  EXPECT_EQ(read.ignore_merges, true);
  EXPECT_EQ(read.byte_unknown, vocabulary.eos);
  EXPECT_EQ(read.add_bos, true);
  EXPECT_EQ(read.bos, vocabulary.bos);
}

TEST(TokenizerJson, MergesMayBePairs) {
  const Vocabulary vocabulary = some_byte_level("gpt-2");
  json document = byte_level_json(vocabulary);
  for (json& merge : document["model"]["merges"]) {
    const std::string text = merge;
    merge = json::array({text.substr(0, text.find(' ', 1)), text.substr(text.find(' ', 1) + 1)});
  }
  EXPECT_EQ(read_tokenizer_json(document.dump()).merges, vocabulary.merges);
}

TEST(TokenizerJson, AddedTokensMayStandInFrontAndBehind) {
  Vocabulary vocabulary = some_byte_level("gpt-2");
  json document = byte_level_json(vocabulary);
  for (const json& token : document["added_tokens"])
    document["model"]["vocab"].erase(token["content"].get<std::string>());
  expect_same(*make_tokenizer(read_tokenizer_json(document.dump())), *make_tokenizer(vocabulary));
}

TEST(TokenizerJson, SentencePieceIsTheVocabularyThatItWasWrittenFrom) {
  Vocabulary expected = some_sentencepiece();
  expected.add_bos = false;
  json document = sentencepiece_json(expected);
  expect_same(*make_tokenizer(read_tokenizer_json(document.dump())), *make_tokenizer(expected));

  document["pre_tokenizer"] = nullptr;
  expect_same(*make_tokenizer(read_tokenizer_json(document.dump())), *make_tokenizer(expected));

  document["decoder"]["decoders"].push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  document["normalizer"] =
      sequence("normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace(" ", "\u2581")});
  EXPECT_EQ(read_tokenizer_json(document.dump()).prefix, SpacePrefix::every_text);

  document["normalizer"] = nullptr;
  document["pre_tokenizer"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "first"}, {"split", false}};
  EXPECT_EQ(read_tokenizer_json(document.dump()).prefix, SpacePrefix::first_bare_text);
  document["pre_tokenizer"]["prepend_scheme"] = "always";
  EXPECT_EQ(read_tokenizer_json(document.dump()).prefix, SpacePrefix::every_bare_text);
}

TEST(TokenizerJson, UserDefinedRunsAreTextOfASentencePieceModel) {
  Vocabulary expected = some_sentencepiece();
  expected.add_bos = false;
  expected.kinds.back() = PieceKind::user_defined;
  const auto tokenizer = make_tokenizer(read_tokenizer_json(sentencepiece_json(expected).dump()));
  expect_same(*tokenizer, *make_tokenizer(expected));
  EXPECT_EQ(tokenizer->encode("  the").front(), Token(expected.pieces.size() - 1));
}

struct Change {
  const char* name;
  std::function<void(json&)> change;
  const char* message;
};
void PrintTo(const Change& change, std::ostream* out) { *out << change.name; }

void expect_refused(const std::string& text, const char* message) {
  try {
    read_tokenizer_json(text);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("tokenizer.json"), HasSubstr(message)));
  }
}

class UnknownByteLevel : public testing::TestWithParam<Change> {};
TEST_P(UnknownByteLevel, IsRefusedByName) {
  json document = byte_level_json(some_byte_level("gpt-2"));
  GetParam().change(document);
  expect_refused(document.dump(), GetParam().message);
}
INSTANTIATE_TEST_SUITE_P(
    All, UnknownByteLevel,
    testing::Values(
        Change{"normalizer",
               [](json& d) {
                 d["normalizer"] = {{"type", "Lowercase"}};
               },
               "normalizer 'Lowercase'"},
        Change{"normalizer_in_sequence",
               [](json& d) {
                 d["normalizer"] = sequence("normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}});
               },
               "'NFKC'"},
        Change{"marks", [](json& d) { d["normalizer"] = replace(" ", "\u2581"); }, "marks spaces"},
        Change{"pattern",
               [](json& d) {
                 d["pre_tokenizer"] = sequence("pretokenizers", {split("\\w+"), byte_level_step(false)});
               },
               "'\\w+'"},
        Change{
            "behavior",
            [](json& d) {
              d["pre_tokenizer"] = sequence("pretokenizers", {split(kQwen2Pattern), byte_level_step(false)});
              d["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed";
            },
            "isolate"},
        Change{"step",
               [](json& d) {
                 d["pre_tokenizer"] =
                     sequence("pretokenizers", {{{"type", "Whitespace"}}, byte_level_step(true)});
               },
               "pre-tokenizer 'Whitespace'"},
        Change{
            "digits",
            [](json& d) {
              d["pre_tokenizer"] = sequence("pretokenizers", {{{"type", "Digits"}}, byte_level_step(true)});
            },
            "'Digits'"},
        Change{"no_pattern", [](json& d) { d["pre_tokenizer"] = byte_level_step(false); }, "no pattern"},
        Change{"adds_space", [](json& d) { d["pre_tokenizer"]["add_prefix_space"] = true; }, "adds a space"},
        Change{"decoder",
               [](json& d) {
                 d["decoder"] = {{"type", "WordPiece"}};
               },
               "decoder 'WordPiece'"},
        Change{"no_decoder", [](json& d) { d["decoder"] = nullptr; }, "no decoder"},
        Change{"post_processor",
               [](json& d) {
                 d["post_processor"] = {{"type", "BertProcessing"}};
               },
               "post-processor 'BertProcessing'"},
        Change{"model", [](json& d) { d["model"]["type"] = "Unigram"; }, "model 'Unigram'"},
        Change{"option", [](json& d) { d["model"]["magic"] = 1; }, "'magic'"},
        Change{"member", [](json& d) { d["magic"] = 1; }, "'magic'"},
        Change{"dropout", [](json& d) { d["model"]["dropout"] = 0.1; }, "dropout"},
        Change{"affix", [](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix"},
        Change{"byte_fallback", [](json& d) { d["model"]["byte_fallback"] = true; }, "falls back"},
        Change{"lstrip", [](json& d) { d["added_tokens"][0]["lstrip"] = true; },
               "'<s>' has the option lstrip"},
        Change{"no_model", [](json& d) { d.erase("model"); }, "no model"},
        Change{"type", [](json& d) { d["model"].erase("type"); }, "'type'"},
        Change{"id", [](json& d) { d["model"]["vocab"]["a"] = -1; }, "of 'a'"},
        Change{"large_id", [](json& d) { d["model"]["vocab"]["a"] = 1 << 20; }, "of 'a'"},
        Change{"real_id", [](json& d) { d["model"]["vocab"]["a"] = 1.5; }, "of 'a'"},
        Change{"gap", [](json& d) { d["model"]["vocab"].erase("a"); }, "no piece has the id 97"},
        Change{"same_id", [](json& d) { d["model"]["vocab"]["a"] = 98; }, "same id, 98"},
        Change{"added_differs", [](json& d) { d["added_tokens"][0]["id"] = 98; }, "same id, 98"},
        Change{"added_gap", [](json& d) { d["added_tokens"][0]["id"] = 1000; }, "no piece has the id"},
        Change{"added_id", [](json& d) { d["added_tokens"][0]["id"] = "1"; }, "'id'"},
        Change{"added_list", [](json& d) { d["added_tokens"] = 1; }, "no list"},
        Change{"added_token", [](json& d) { d["added_tokens"][0] = 1; }, "no object"},
        Change{"merge", [](json& d) { d["model"]["merges"][0] = 7; }, "no pair, 0"},
        Change{"merge_of_three",
               [](json& d) {
                 d["model"]["merges"][1] = {"a", "b", "c"};
               },
               "no pair, 1"},
        Change{"merge_of_one", [](json& d) { d["model"]["merges"][1] = {"a"}; }, "no pair, 1"},
        Change{"merge_with_space",
               [](json& d) {
                 d["model"]["merges"][1] = {"a b", "c"};
               },
               "no pair, 1"},
        Change{"unk", [](json& d) { d["model"]["unk_token"] = "nowhere"; }, "nowhere"},
        Change{"step_type",
               [](json& d) {
                 d["normalizer"] = {{"kind", "NFC"}};
               },
               "'type'"},
        Change{"step_list",
               [](json& d) {
                 d["normalizer"] = {{"type", "Sequence"}};
               },
               "no list"},
        Change{"text_for_object", [](json& d) { d["normalizer"] = "NFC"; }, "no object"}),
    [](const auto& change) { return change.param.name; });

class UnknownSentencePiece : public testing::TestWithParam<Change> {};
TEST_P(UnknownSentencePiece, IsRefusedByName) {
  json document = sentencepiece_json(some_sentencepiece());
  GetParam().change(document);
  expect_refused(document.dump(), GetParam().message);
}
INSTANTIATE_TEST_SUITE_P(
    All, UnknownSentencePiece,
    testing::Values(
        Change{"no_fallback", [](json& d) { d["model"]["byte_fallback"] = false; }, "falls back to bytes"},
        Change{"ignore_merges", [](json& d) { d["model"]["ignore_merges"] = true; }, "ignore_merges"},
        Change{"unmarked", [](json& d) { d["normalizer"] = nullptr; }, "marks spaces"},
        Change{"nfc",
               [](json& d) {
                 d["normalizer"] = {{"type", "NFC"}};
               },
               "'NFC'"},
        Change{"other_mark", [](json& d) { d["normalizer"]["content"] = "_"; }, "'Replace'"},
        Change{"split",
               [](json& d) {
                 d["pre_tokenizer"]["pattern"] = {{"String", "x"}};
               },
               "'Split'"},
        Change{"pre_tokenizer",
               [](json& d) {
                 d["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
               },
               "'BertPreTokenizer'"},
        Change{"decoder", [](json& d) { d["decoder"]["decoders"].erase(1); }, "undo"},
        Change{"decoder_strips",
               [](json& d) {
                 d["decoder"]["decoders"].push_back(
                     {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
               },
               "undo"},
        Change{"merges_out_of_order",
               [](json& d) { std::swap(d["model"]["merges"][0], d["model"]["merges"][4]); },
               "order of the pieces"},
        Change{"merge_less", [](json& d) { d["model"]["merges"].erase(2); }, "ways"},
        Change{"merge_makes_nothing",
               [](json& d) {
                 d["model"]["merges"][0] = {"e", "e"};
               },
               "makes no piece"}),
    [](const auto& change) { return change.param.name; });

TEST(TokenizerJson, MalformedJsonIsRefused) {
  const std::string good = byte_level_json(some_byte_level("gpt-2")).dump();
  expect_refused("", "malformed");
  expect_refused("[]", "no JSON object");
  expect_refused("{} x", "malformed JSON at byte 4");
  expect_refused(good.substr(0, good.size() / 2), "malformed");
  expect_refused(good + std::string(1, '\0') + "{}", "a NUL");
  expect_refused(R"({"a":1,"a":1})", "member 'a' twice");
  expect_refused(R"({"model":{"vocab":{},"vocab":{}}})", "member 'vocab' twice");
  expect_refused(R"({"model":{"vocab":{"a":0,"a":0},"type":"BPE","merges":[]}})", "same id, 0");
  expect_refused(R"({"model":{"vocab":{"a":{"b":0}}}})", "of 'a'");
  expect_refused(R"({"model":{"merges":[["a",["b"]]]}})", "no pair, 0");
  expect_refused(R"({"model":{"merges":[{"a":"b"}]}})", "no pair, 0");
  expect_refused(R"({"model":{"type":"BPE","vocab":{},"merges":{}}})", "no merges");
  expect_refused("{\"a\":\"\xff\"}", "malformed");
  expect_refused(std::string(100000, '['), "64 levels");
  std::string many = "{\"a\":[0";
  for (int i = 0; i < 1 << 18; ++i) many += ",0";
  expect_refused(many + "]}", "values");
}

TEST(TokenizerJson, DamagedFilesNeverCrash) {
  Random random(9);
  const std::string files[] = {byte_level_json(some_byte_level("gpt-2")).dump(),
                               sentencepiece_json(some_sentencepiece()).dump()};
  for (int i = 0; i < 400; ++i) {
    std::string text = files[i % 2];
    for (uint64_t n = 1 + random.below(3); n > 0; --n) {
      const size_t at = random.below(text.size());
      switch (random.below(3)) {
        case 0: text[at] = char(random.below(256)); break;
        case 1: text.erase(at, 1 + random.below(40)); break;
        default: text.insert(at, text.substr(random.below(text.size()), 1 + random.below(40)));
      }
    }
    try {
      const auto tokenizer = make_tokenizer(read_tokenizer_json(text));
      tokenizer->decode(tokenizer->encode("the 12"));
    } catch (const Error& error) { EXPECT_EQ(error.kind, ErrorKind::bad_file); }
  }
}

TEST(TokenizerConfig, IsRead) {
  const TokenizerConfig config = read_tokenizer_config(
      R"({"bos_token":{"content":"<s>","lstrip":false},"eos_token":"</s>","chat_template":"{{ x }}","more":[1]})");
  EXPECT_EQ(config.bos, "<s>");
  EXPECT_EQ(config.eos, "</s>");
  EXPECT_EQ(config.chat_template, "{{ x }}");
  const TokenizerConfig other = read_tokenizer_config(
      R"({"bos_token":null,"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(other.bos, std::nullopt);
  EXPECT_EQ(other.chat_template, "d");
  EXPECT_THROW(read_tokenizer_config(R"({"eos_token":7})"), Error);
  EXPECT_THROW(read_tokenizer_config("[]"), Error);
}

}  // namespace
}  // namespace kveval
