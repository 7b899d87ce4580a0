#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "engine/error.h"
#include "engine/random.h"
#include "engine/text/byte_bpe_tokenizer.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/damaged_vocabulary.h"
#include "tests/engine/small_vocabularies.h"

namespace kveval {
namespace {

using testing::ElementsAre;

std::vector<std::string> cut(const char* pre_tokenizer, std::string_view text) {
  std::vector<std::string> pieces;
  for (const std::string_view piece : PreTokenizer(pre_tokenizer_named(pre_tokenizer)).split(text))
    pieces.emplace_back(piece);
  return pieces;
}

// Derived by hand from the published patterns.
TEST(PreTokenizer, CutsAsItsPatternSays) {
  EXPECT_THAT(cut("gpt-2", "It's  12345 ok?!\n\n x"),
              ElementsAre("It", "'s", " ", " 12345", " ok", "?!", "\n\n", " x"));
  EXPECT_THAT(cut("smollm", "It's  123 ok"), ElementsAre("It", "'s", "  ", "1", "2", "3", " ok"));
  EXPECT_THAT(cut("llama-bpe", "It'S  12345 (ok)\n\n x"),
              ElementsAre("It", "'S", " ", " ", "123", "45", " (", "ok", ")\n\n", " x"));
  EXPECT_THAT(cut("qwen2", "a_b 12\t\n c"), ElementsAre("a", "_b", " ", "1", "2", "\t\n", " c"));
}

TEST(PreTokenizer, IsolatedDigitsEndTheTextBeforeThem) {
  EXPECT_THAT(cut("gpt-2", "a  1"), ElementsAre("a", " ", " 1"));
  EXPECT_THAT(cut("smollm", "a  1"), ElementsAre("a", "  ", "1"));
}

TEST(PreTokenizer, WhiteSpaceIsUnicodes) {
  EXPECT_THAT(cut("gpt-2", "a\u00a0\u2003\u3000"), ElementsAre("a", "\u00a0\u2003\u3000"));
  EXPECT_THAT(cut("gpt-2", "a\u180e!"), ElementsAre("a", "\u180e!")) << "the Mongolian separator is none";
}

TEST(PreTokenizer, LosesNothing) {
  Random random(3);
  const std::string_view parts[] = {" ",          "  ",     "\n", "\r\n",   "\t",     "a",       "Z",
                                    "'s",         "'LL",    "1",  "\u00b2", "\u00e9", "e\u0301", "\u4e2d",
                                    "\U0001F600", "\u200d", "_",  "-",      "?!",     "\u180e",  "\u0085"};
  for (const char* name : {"gpt-2", "smollm", "llama-bpe", "qwen2", "llama3"}) {
    const PreTokenizer pre_tokenizer(pre_tokenizer_named(name));
    for (int i = 0; i < 300; ++i) {
      std::string text, joined;
      for (uint64_t n = random.below(30); n > 0; --n) text += parts[random.below(std::size(parts))];
      for (const std::string_view piece : pre_tokenizer.split(text)) {
        ASSERT_FALSE(piece.empty());
        joined += piece;
      }
      ASSERT_EQ(joined, text);
    }
  }
}

// One piece each, so that only merging is tested.
TEST(ByteBpe, MergesAsTheSlowWayDoes) {
  Random random(1);
  for (int round = 0; round < 40; ++round) {
    const MergeList merges = random_merges(random, "abc", 1 + random.below(60));
    std::map<std::pair<std::string, std::string>, size_t> rank;
    for (size_t i = 0; i < merges.size(); ++i) rank.emplace(merges[i], i);
    const Vocabulary vocabulary = byte_level_vocabulary("gpt-2", merges);
    const auto tokenizer = make_tokenizer(vocabulary);
    for (int i = 0; i < 25; ++i) {
      std::vector<std::string> symbols;
      std::string text;
      for (uint64_t n = 1 + random.below(60); n > 0; --n) text += char('a' + random.below(3));
      for (const char c : text) symbols.emplace_back(1, c);
      std::vector<std::string> expected;
      for (const std::string& piece : merge_slowly(symbols, [&](const auto&left, const auto&right) {
             const auto found = rank.find({left, right});
             return found == rank.end() ? std::nullopt : std::optional<size_t>(found->second);
           }))
        expected.push_back(in_byte_alphabet(piece));
      std::vector<std::string> got;
      for (const Token token : tokenizer->encode(text)) got.push_back(vocabulary.pieces[size_t(token)]);
      ASSERT_EQ(got, expected) << text;
    }
  }
}

TEST(ByteBpe, AnyBytesSurvive) {
  Random random(2);
  const auto tokenizer =
      make_tokenizer(byte_level_vocabulary("gpt-2", random_merges(random, "ab \xc3\xa9", 30)));
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (uint64_t n = random.below(40); n > 0; --n)
      text += random.below(2) ? char(random.below(256)) : "ab \xc3\xa9"[random.below(5)];
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(ByteBpe, AMegabyteOfOneCharacter) {
  const auto tokenizer =
      make_tokenizer(byte_level_vocabulary("llama-bpe", {{"a", "a"}, {"aa", "aa"}, {" ", " "}}));
  const size_t million = size_t{1} << 20;
  EXPECT_EQ(tokenizer->encode(std::string(million, 'a')).size(), million / 4);
  EXPECT_EQ(tokenizer->encode(std::string(million, ' ')).size(), million / 2);
  EXPECT_EQ(tokenizer->encode(std::string(million, '\n')).size(), million);
  EXPECT_EQ(tokenizer->encode(std::string(million, '\xff')).size(), million);
  EXPECT_EQ(tokenizer->encode(std::string(million, ' ') + "x").size(), million / 2 + 2)
      << "the last space goes with x";
}

TEST(ByteBpe, SpecialTokensAreRecognisedInLiteralsOnly) {
  const Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {{"a", "b"}});
  const auto tokenizer = make_tokenizer(vocabulary);
  const Token ab = 256, end = *vocabulary.eos, tool = *vocabulary.eos + 1;
  for (const Token token : tokenizer->encode("<s></s><tool>")) EXPECT_LT(token, 256);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("<s></s><tool>")), "<s></s><tool>");

  const std::vector<PromptPart> parts = {{"</s>a", true}, {"b", false}, {"<tool>", true}, {"</s>", false}};
  Tokens expected = {end, ab, tool};
  for (const Token token : tokenizer->encode("</s>")) expected.push_back(token);
  EXPECT_EQ(tokenizer->encode_prompt(parts), expected) << "text is merged across parts";
  EXPECT_EQ(tokenizer->decode({end, ab, tool}), "ab<tool>") << "control pieces read as nothing";
}

TEST(ByteBpe, BeginsWithBosWhereModelsDo) {
  Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {});
  EXPECT_EQ(make_tokenizer(vocabulary)->bos(), std::nullopt);
  EXPECT_EQ(make_tokenizer(vocabulary)->eos(), vocabulary.eos);
  vocabulary.pre_tokenizer = "llama-bpe";
  EXPECT_EQ(make_tokenizer(vocabulary)->bos(), vocabulary.bos);
  vocabulary.add_bos = false;
  EXPECT_EQ(make_tokenizer(vocabulary)->bos(), std::nullopt);
}

TEST(ByteBpe, WholePiecesWinWhereMergesAreIgnored) {
  // Merging cannot reach the piece "abc": ab comes first.
  Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {{"a", "b"}, {"b", "c"}, {"a", "bc"}});
  EXPECT_THAT(make_tokenizer(vocabulary)->encode("abc"), ElementsAre(256, 'c'));
  vocabulary.ignore_merges = true;
  EXPECT_THAT(make_tokenizer(vocabulary)->encode("abc"), ElementsAre(258));
  vocabulary.ignore_merges.reset();
  vocabulary.pre_tokenizer = "llama-bpe";
  EXPECT_THAT(make_tokenizer(vocabulary)->encode("abc"), ElementsAre(258));
}

TEST(ByteBpe, NormalizesWhereModelsDo) {
  const std::string composed = "\u00e9\u00c5", decomposed = "e\u0301\u212b";
  Vocabulary vocabulary = byte_level_vocabulary("qwen2", {});
  const auto nfc = make_tokenizer(vocabulary);
  EXPECT_EQ(nfc->encode(decomposed), nfc->encode(composed));
  EXPECT_EQ(nfc->decode(nfc->encode("x\xff" + decomposed)), "x\xff" + composed)
      << "around what is no UTF-8 too";
  vocabulary.nfc = false;
  EXPECT_EQ(make_tokenizer(vocabulary)->decode(make_tokenizer(vocabulary)->encode(decomposed)), decomposed);
}

TEST(ByteBpe, AByteWithoutAPieceIsLeftOutOrUnknown) {
  Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {});
  vocabulary.pieces[0] = in_byte_alphabet("ab");  // takes the place of byte 0
  auto tokenizer = make_tokenizer(vocabulary);
  EXPECT_EQ(tokenizer->encode(std::string("a\0b", 3)), tokenizer->encode("ab"));
  vocabulary.byte_unknown = vocabulary.eos;
  tokenizer = make_tokenizer(vocabulary);
  EXPECT_THAT(tokenizer->encode(std::string("\0", 1)), ElementsAre(*vocabulary.eos));
}

TEST(ByteBpe, HashChangesWithEveryField) {
  std::set<std::string> hashes;
  const auto add = [&](const std::function<void(Vocabulary&)>& change) {
    Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {{"a", "b"}, {"c", "d"}});
    change(vocabulary);
    EXPECT_TRUE(hashes.insert(hash_of(vocabulary)).second);
  };
  add([](Vocabulary&) {});
  add([](Vocabulary& v) { v.pre_tokenizer = "qwen2"; });
  add([](Vocabulary& v) { v.model = "llama"; });
  add([](Vocabulary& v) { std::swap(v.merges[0], v.merges[1]); });
  add([](Vocabulary& v) { std::swap(v.pieces[0], v.pieces[1]); });
  add([](Vocabulary& v) { v.kinds[0] = PieceKind::unused; });
  add([](Vocabulary& v) { v.scores = {1}; });
  add([](Vocabulary& v) { v.bos = 0; });
  add([](Vocabulary& v) { v.bos.reset(); });
  add([](Vocabulary& v) { v.eos = 0; });
  add([](Vocabulary& v) { v.unknown = 0; });
  add([](Vocabulary& v) { v.byte_unknown = 0; });
  add([](Vocabulary& v) { v.add_bos = false; });
  add([](Vocabulary& v) { v.prefix = SpacePrefix::none; });
  add([](Vocabulary& v) { v.ignore_merges = false; });
  add([](Vocabulary& v) { v.nfc = false; });
}

class DamagedVocabulary : public testing::TestWithParam<Damage> {};
TEST_P(DamagedVocabulary, IsRefused) {
  expect_refused(byte_level_vocabulary("gpt-2", {{"a", "b"}, {"c", "d"}}), GetParam());
}
INSTANTIATE_TEST_SUITE_P(
    All, DamagedVocabulary,
    testing::Values(
        Damage{"model", [](Vocabulary& v) { v.model = "t5"; }, "'t5'"},
        Damage{"no_model", [](Vocabulary& v) { v.model = ""; }, "''"},
        Damage{"pre_tokenizer", [](Vocabulary& v) { v.pre_tokenizer = "tekken"; }, "'tekken'"},
        Damage{"control_bytes", [](Vocabulary& v) { v.pre_tokenizer = "\x1b[31m"; }, "'\\x1b[31m'"},
        Damage{"no_pieces", [](Vocabulary& v) { v.pieces.clear(), v.kinds.clear(); }, "is empty"},
        Damage{"too_many", [](Vocabulary& v) { v.pieces.resize(kMaxPieces + 1); }, "at most"},
        Damage{"kinds", [](Vocabulary& v) { v.kinds.pop_back(); }, "kinds"},
        Damage{"scores", [](Vocabulary& v) { v.scores.assign(v.pieces.size(), 0); }, "scores"},
        Damage{"bos", [](Vocabulary& v) { v.bos = Token(v.pieces.size()); }, "BOS"},
        Damage{"eos", [](Vocabulary& v) { v.eos = -1; }, "EOS"},
        Damage{"no_bos", [](Vocabulary& v) { v.add_bos = true, v.bos.reset(); }, "BOS"},
        Damage{"twice", [](Vocabulary& v) { v.pieces[3] = v.pieces[70]; }, "as 3 and 70"},
        Damage{"empty", [](Vocabulary& v) { v.pieces[3] = ""; }, "empty piece, 3"},
        Damage{"no_utf8", [](Vocabulary& v) { v.pieces[3] = "\xc3"; }, "no UTF-8, 3 '\\xc3'"},
        Damage{"surrogate", [](Vocabulary& v) { v.pieces[3] = "\xed\xa0\x80"; }, "no UTF-8"},
        Damage{"alphabet", [](Vocabulary& v) { v.pieces[3] = "\u4e2d"; }, "byte alphabet, 3"},
        Damage{"space", [](Vocabulary& v) { v.pieces[3] = "a b"; }, "byte alphabet, 3"},
        Damage{"byte_piece", [](Vocabulary& v) { v.kinds[3] = PieceKind::byte; }, "byte piece, 3"},
        Damage{"left", [](Vocabulary& v) { v.merges[0] = "xy b"; }, "no piece 'xy'"},
        Damage{"right", [](Vocabulary& v) { v.merges[0] = "a xy"; }, "'xy'"},
        Damage{"product", [](Vocabulary& v) { v.merges[1] = "a c"; }, "no piece 'ac', which merge 1"},
        Damage{"of_special", [](Vocabulary& v) { v.merges[0] = "<s> a"; }, "no piece"},
        Damage{"no_pair", [](Vocabulary& v) { v.merges[0] = "ab"; }, "no pair"},
        Damage{"no_right", [](Vocabulary& v) { v.merges[0] = "a "; }, "no pair"},
        Damage{"no_merge", [](Vocabulary& v) { v.merges[0] = ""; }, "no pair"},
        Damage{"merge_twice", [](Vocabulary& v) { v.merges[1] = v.merges[0]; }, "'a b' twice"},
        Damage{"prefix", [](Vocabulary& v) { v.prefix = SpacePrefix::every_text; }, "space before"}),
    [](const auto& damage) { return damage.param.name; });

TEST(Vocabulary, KindsAreChecked) {
  EXPECT_EQ(piece_kind(6), PieceKind::byte);
  EXPECT_THROW(piece_kind(0), Error);
  EXPECT_THROW(piece_kind(7), Error);
  EXPECT_THROW(piece_kind(int64_t{1} << 32 | 1), Error);
}

TEST(Vocabulary, PaddingIsNeverProducedAndReadsAsNothing) {
  Vocabulary vocabulary = byte_level_vocabulary("gpt-2", {});
  const auto before = make_tokenizer(vocabulary);
  pad(vocabulary, 300);
  const auto padded = make_tokenizer(vocabulary);
  EXPECT_EQ(padded->vocabulary_size(), 300);
  EXPECT_EQ(padded->encode("[PAD299]"), before->encode("[PAD299]"));
  EXPECT_EQ(padded->decode({299}), "");
  EXPECT_THROW(padded->decode({300}), Error);
  EXPECT_THROW(padded->decode({-1}), Error);
  EXPECT_THROW(pad(vocabulary, kMaxPieces + 1), Error);
}

}  // namespace
}  // namespace kveval
