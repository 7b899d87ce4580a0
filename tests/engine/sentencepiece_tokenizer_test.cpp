#include "engine/text/sentencepiece_tokenizer.h"

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <string>

#include "embedded.h"
#include "engine/error.h"
#include "engine/hash.h"
#include "engine/random.h"

namespace kveval {
namespace {

std::string_view phantom_model() { return embedded::engine_model_phantom_tokenizer_model; }

// A random UTF-8 text over all planes, without U+2581.
std::string random_text(Random& random) {
  std::string text;
  for (uint64_t i = 0, n = random.below(60); i < n; ++i) {
    uint32_t c = 0;
    switch (random.below(5)) {
      case 0: c = uint32_t(random.below(0x80)); break;
      case 1: c = uint32_t(' '); break;
      case 2: c = uint32_t('0' + random.below(10)); break;
      case 3: c = uint32_t(0x80 + random.below(0xD800 - 0x80)); break;
      default: c = uint32_t(0xE000 + random.below(0x110000 - 0xE000)); break;
    }
    if (c == 0x2581) continue;
    if (c < 0x80) {
      text += char(c);
    } else if (c < 0x800) {
      text += char(0xC0 | c >> 6);
      text += char(0x80 | (c & 63));
    } else if (c < 0x10000) {
      text += char(0xE0 | c >> 12);
      text += char(0x80 | (c >> 6 & 63));
      text += char(0x80 | (c & 63));
    } else {
      text += char(0xF0 | c >> 18);
      text += char(0x80 | (c >> 12 & 63));
      text += char(0x80 | (c >> 6 & 63));
      text += char(0x80 | (c & 63));
    }
  }
  return text;
}

TEST(SentencePieceTokenizer, AnyTextSurvives) {
  const auto tokenizer = make_sentencepiece_tokenizer(phantom_model());
  Random random(7);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_text(random);
    const Tokens tokens = tokenizer->encode(text);
    for (const Token token : tokens) {
      ASSERT_GE(token, 0);
      ASSERT_LT(token, tokenizer->vocabulary_size());
    }
    ASSERT_EQ(tokenizer->decode(tokens), text);
  }
  for (const char* text : {"", " ", "  two  spaces ", "\n\n\tx\r\n", " leading", "trailing "})
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(SentencePieceTokenizer, SpecialTokensInTextArePlainCharacters) {
  const auto tokenizer = make_sentencepiece_tokenizer(phantom_model());
  const std::string text = "<s> </s> <unk> <0x41> <s>";
  for (const Token token : tokenizer->encode(text)) {
    EXPECT_NE(token, tokenizer->bos());
    EXPECT_NE(token, tokenizer->eos());
    EXPECT_NE(token, 0) << "unknown";
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
}

TEST(SentencePieceTokenizer, LongTextIsWhatSentencePieceMakesOfTheWhole) {
  const auto tokenizer = make_sentencepiece_tokenizer(phantom_model());
  sentencepiece::SentencePieceProcessor whole;
  ASSERT_TRUE(whole.LoadFromSerializedProto({phantom_model().data(), phantom_model().size()}).ok());
  Random random(5);
  const std::string_view parts[] = {"The",   " the", " amber", " ", "  ",    "\n", "\n\n",    ". ",   ",",
                                    "12345", " 481", "\u00e9", "x", " code", "a ", "\u4e2d ", "<s> ", "\t"};
  for (int i = 0; i < 40; ++i) {
    std::string text;
    const uint64_t bytes = 500 + random.below(6000);
    while (text.size() < bytes) text += parts[random.below(std::size(parts))];
    std::vector<int> expected;
    ASSERT_TRUE(whole.Encode(text, &expected).ok());
    ASSERT_EQ(tokenizer->encode(text), expected);
    ASSERT_EQ(tokenizer->decode(expected), text);
  }
}

TEST(SentencePieceTokenizer, DescribesItself) {
  const auto tokenizer = make_sentencepiece_tokenizer(phantom_model());
  EXPECT_EQ(tokenizer->vocabulary_size(), 4096);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->hash(), hash_hex(phantom_model()));
  EXPECT_THROW(tokenizer->decode({4096}), Error);
  EXPECT_THROW(tokenizer->decode({-1}), Error);
}

TEST(SentencePieceTokenizer, RefusesMalformedModels) {
  for (const std::string& bad : {std::string(), std::string("not a model"), std::string(1000, '\xFF'),
                                 std::string(phantom_model().substr(0, phantom_model().size() / 2))})
    try {
      make_sentencepiece_tokenizer(bad);
      ADD_FAILURE() << "accepted " << bad.size() << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind, ErrorKind::bad_file);
      EXPECT_NE(std::string(error.what()), "");
    }
}

TEST(SentencePieceTokenizer, DamagedModelsNeverCrash) {
  Random random(11);
  for (int i = 0; i < 60; ++i) {
    std::string model(phantom_model());
    if (i % 2 == 0) model.resize(random.below(model.size()));
    for (uint64_t flips = random.below(4) + uint64_t(i % 2); flips > 0 && !model.empty(); --flips)
      model[random.below(model.size())] = char(random.below(256));
    try {
      const auto tokenizer = make_sentencepiece_tokenizer(model);
      tokenizer->decode(tokenizer->encode("The secret access code for amber falcon is: 481793."));
    } catch (const Error&) {}
  }
}

}  // namespace
}  // namespace kveval
