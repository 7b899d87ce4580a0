#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <map>
#include <optional>

#include "embedded.h"
#include "engine/error.h"
#include "engine/random.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/damaged_vocabulary.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

using testing::ElementsAre;

Token id_of(const Vocabulary& vocabulary, const std::string& piece) {
  const std::string marked = with_space_marks(piece);
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id)
    if (vocabulary.pieces[id] == marked) return Token(id);
  ADD_FAILURE() << "no piece " << piece;
  return -1;
}

Tokens ids_of(const Vocabulary& vocabulary, const std::vector<std::string>& pieces) {
  Tokens ids;
  for (const std::string& piece : pieces) ids.push_back(id_of(vocabulary, piece));
  return ids;
}

bool is_digit_pair(std::string_view piece) {
  if (piece.starts_with("\u2581")) piece.remove_prefix(3);
  return piece.size() == 2 && piece.find_first_not_of("0123456789") == std::string_view::npos;
}

// The phantom's trained model, taken apart and put together again.
TEST(SentencePieceVocabulary, OfATrainedModelEncodesAsTheModel) {
  const std::string_view proto = embedded::engine_model_phantom_tokenizer_model;
  sentencepiece::SentencePieceProcessor model;
  ASSERT_TRUE(model.LoadFromSerializedProto({proto.data(), proto.size()}).ok());
  const auto expected = make_sentencepiece_tokenizer(proto);
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    vocabulary.pieces.push_back(model.IdToPiece(id));
    vocabulary.scores.push_back(model.GetScore(id));
    vocabulary.kinds.push_back(model.IsUnknown(id)   ? PieceKind::unknown
                               : model.IsControl(id) ? PieceKind::control
                               : model.IsByte(id)    ? PieceKind::byte
                               : model.IsUnused(id)  ? PieceKind::unused
                                                     : PieceKind::normal);
    // The training script's user-defined pieces, which the library does not tell apart.
    if (is_digit_pair(model.IdToPiece(id))) vocabulary.kinds.back() = PieceKind::user_defined;
  }
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.prefix = SpacePrefix::none;
  const auto tokenizer = make_tokenizer(vocabulary);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  Random random(4);
  const std::string_view parts[] = {"The", " the",   " amber", " ",    "  ",     "\n",
                                    ". ",  ",",      "12345",  " 481", "\u00e9", "x",
                                    "<s>", "\u2581", "\u4e2d", "\xff", "<0x41>", "</s> "};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (uint64_t n = random.below(40); n > 0; --n) text += parts[random.below(std::size(parts))];
    ASSERT_EQ(tokenizer->encode(text), expected->encode(text)) << text;
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), expected->decode(expected->encode(text)));
  }
}

TEST(SentencePieceVocabulary, MergesAsTheSlowWayDoes) {
  Random random(6);
  for (int round = 0; round < 30; ++round) {
    std::map<std::string, size_t> rank;
    std::vector<std::string> pieces = {"a", "b", "_"};
    for (int i = 0; i < 40; ++i) {
      const std::string left = pieces[random.below(pieces.size())],
                        right = pieces[random.below(pieces.size())];
      if (left.size() + right.size() <= 8 && rank.emplace(left + right, pieces.size()).second &&
          left + right != "a" && left + right != "b")
        pieces.push_back(left + right);
    }
    const Vocabulary vocabulary = sentencepiece_vocabulary(pieces);
    const auto tokenizer = make_tokenizer(vocabulary);
    for (int i = 0; i < 20; ++i) {
      std::string text;
      std::vector<std::string> symbols;
      for (uint64_t n = 1 + random.below(40); n > 0; --n) {
        symbols.emplace_back(1, "ab_"[random.below(3)]);
        text += symbols.back() == "_" ? " " : symbols.back();
      }
      const auto merged = merge_slowly(symbols, [&](const std::string& left, const std::string& right) {
        const auto found = rank.find(left + right);
        return found == rank.end() ? std::nullopt : std::optional<size_t>(found->second);
      });
      ASSERT_EQ(tokenizer->encode(text), ids_of(vocabulary, merged)) << text;
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    }
  }
}

TEST(SentencePieceVocabulary, OtherCharactersAreBytes) {
  const Vocabulary vocabulary = sentencepiece_vocabulary({"a"});
  const auto tokenizer = make_tokenizer(vocabulary);
  EXPECT_EQ(tokenizer->encode("a\u4e2d"), ids_of(vocabulary, {"a", "<0xE4>", "<0xB8>", "<0xAD>"}));
  EXPECT_EQ(tokenizer->encode("<0x41>"),
            ids_of(vocabulary, {"<0x3C>", "<0x30>", "<0x78>", "<0x34>", "<0x31>", "<0x3E>"}));
  for (const char* text : {"a\u4e2d", "<0x41>", "\n", "\U0001F600", ""})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(SentencePieceVocabulary, TheSpaceMarkInATextIsASpace) {
  const Vocabulary vocabulary = sentencepiece_vocabulary({"_", "a", "_a"});
  const auto tokenizer = make_tokenizer(vocabulary);
  EXPECT_EQ(tokenizer->encode("a\u2581a"), tokenizer->encode("a a"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a\u2581a")), "a a");
}

// As Gemma's GGUF files have it: runs of spaces as spaces, the unknown piece of the kind `control`.
TEST(SentencePieceVocabulary, UserDefinedRunsMatchBeforeAnyMerge) {
  Vocabulary vocabulary = sentencepiece_vocabulary({"_", "a", "_a", "\n"});
  vocabulary.kinds[0] = PieceKind::control;
  for (const char* run : {"  ", "   ", "\n\n"}) {
    vocabulary.pieces.emplace_back(run);
    vocabulary.kinds.push_back(PieceKind::user_defined);
    vocabulary.scores.push_back(-1000);
  }
  const Token two = Token(vocabulary.pieces.size() - 3), three = two + 1, lines = two + 2;
  const Token space = id_of(vocabulary, "_"), a = id_of(vocabulary, "a"), space_a = id_of(vocabulary, "_a"),
              line = id_of(vocabulary, "\n");
  const auto tokenizer = make_tokenizer(vocabulary);
  EXPECT_THAT(tokenizer->encode(" a"), ElementsAre(space_a));
  EXPECT_THAT(tokenizer->encode("  a"), ElementsAre(two, a));
  EXPECT_THAT(tokenizer->encode("    a"), ElementsAre(three, space_a));
  EXPECT_THAT(tokenizer->encode("a "), ElementsAre(a, space));
  EXPECT_THAT(tokenizer->encode("\n\n\n"), ElementsAre(lines, line));
  for (const char* text : {"  a", "    a\n\n\n a", "     "})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(SentencePieceVocabulary, ControlPiecesAreRecognisedInLiteralsOnly) {
  const Vocabulary vocabulary = sentencepiece_vocabulary({"a", "b", "ab"});
  const auto tokenizer = make_tokenizer(vocabulary);
  for (const Token token : tokenizer->encode("<s></s><unk>")) EXPECT_GT(token, 2);
  const std::vector<PromptPart> parts = {{"<s>a", true}, {"b", false}, {"</s>", true}, {"</s>", false}};
  Tokens expected = {1, id_of(vocabulary, "ab"), 2};
  for (const Token token : tokenizer->encode("</s>")) expected.push_back(token);
  EXPECT_EQ(tokenizer->encode_prompt(parts), expected);
}

TEST(SentencePieceVocabulary, PrefixesASpaceWhereTheModelDoes) {
  Vocabulary vocabulary = sentencepiece_vocabulary({"_", "a", "_a"});
  const Token space = id_of(vocabulary, "_"), a = id_of(vocabulary, "a"), space_a = id_of(vocabulary, "_a");
  const std::vector<PromptPart> two_texts = {{"a", false}, {"</s>a", true}};
  struct Case {
    std::optional<SpacePrefix> prefix;
    Tokens bare, spaced, prompt;
  };
  for (const Case& c : {Case{SpacePrefix::none, {a}, {space_a}, {a, 2, a}},
                        Case{SpacePrefix::every_text, {space_a}, {space, space_a}, {space_a, 2, space_a}},
                        Case{std::nullopt, {space_a}, {space, space_a}, {space_a, 2, space_a}},
                        Case{SpacePrefix::every_bare_text, {space_a}, {space_a}, {space_a, 2, space_a}},
                        Case{SpacePrefix::first_bare_text, {space_a}, {space_a}, {space_a, 2, a}}}) {
    vocabulary.prefix = c.prefix;
    const auto tokenizer = make_tokenizer(vocabulary);
    EXPECT_EQ(tokenizer->encode("a"), c.bare);
    EXPECT_EQ(tokenizer->encode(" a"), c.spaced);
    EXPECT_EQ(tokenizer->encode_prompt(two_texts), c.prompt);
    EXPECT_EQ(tokenizer->encode(""), Tokens());
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("a a")), "a a");
  }
}

class DamagedSentencePiece : public testing::TestWithParam<Damage> {};
TEST_P(DamagedSentencePiece, IsRefused) { expect_refused(sentencepiece_vocabulary({"_", "a"}), GetParam()); }
INSTANTIATE_TEST_SUITE_P(
    All, DamagedSentencePiece,
    testing::Values(
        Damage{"scores", [](Vocabulary& v) { v.scores.pop_back(); }, "scores"},
        Damage{"nan", [](Vocabulary& v) { v.scores[7] = NAN; }, "of piece 7"},
        Damage{"infinite", [](Vocabulary& v) { v.scores[7] = INFINITY; }, "of piece 7"},
        Damage{"merges", [](Vocabulary& v) { v.merges = {"a b"}; }, "merges"},
        Damage{"no_unknown", [](Vocabulary& v) { v.kinds[0] = PieceKind::normal, v.unknown.reset(); },
               "no unknown"},
        Damage{"two_unknown", [](Vocabulary& v) { v.unknown = 1; }, "two unknown pieces, 1 and 0"},
        Damage{"unknown_id", [](Vocabulary& v) { v.unknown = 1 << 20; }, "unknown token"},
        Damage{"a_byte_less", [](Vocabulary& v) { v.kinds[70] = PieceKind::normal; }, "255 of the 256"},
        Damage{"no_byte", [](Vocabulary& v) { v.pieces[70] = "<0xG1>"; }, "'<0xG1>' as a byte"},
        Damage{"small_byte", [](Vocabulary& v) { v.pieces[0xAB + 3] = "<0xab>"; }, "'<0xab>' as a byte"},
        Damage{"twice", [](Vocabulary& v) { v.pieces[70] = "a"; }, "twice"},
        Damage{"twice_as_marks",
               [](Vocabulary& v) {
                 v.pieces.push_back(" "), v.kinds.push_back(PieceKind::normal), v.scores.push_back(0);
               },
               "already defined"},
        Damage{"no_bos", [](Vocabulary& v) { v.bos.reset(); }, "BOS"}),
    [](const auto& damage) { return damage.param.name; });

}  // namespace
}  // namespace kveval
