// Tokenizers for tests of tasks: the phantom's, and some that share nothing with it.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <string>

#include "embedded.h"
#include "engine/hash.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/special_tokens.h"

namespace kveval {

inline const Tokenizer& phantom_tokenizer() {
  static const auto kTokenizer = make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model);
  return *kTokenizer;
}

// A token a byte, no BOS.
class ByteTokenizer : public Tokenizer {
 public:
  Tokens encode(std::string_view text) const override {
    Tokens tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(const Tokens& tokens) const override {
    std::string text;
    for (const Token token : tokens) text += char(token);
    return text;
  }
  int vocabulary_size() const override { return 256; }
  std::optional<Token> bos() const override { return std::nullopt; }
  std::optional<Token> eos() const override { return std::nullopt; }
  std::string hash() const override { return "bytes"; }
};

// Bytes, but a piece alone takes fewer tokens than in its place, or more: `inside` extra ones after a full
// stop and line end, `alone` extra ones for a text that begins with a space.
class UnevenTokenizer : public ByteTokenizer {
 public:
  UnevenTokenizer(size_t inside, size_t alone) : inside_(inside), alone_(alone) {}
  Tokens encode(std::string_view text) const override {
    Tokens tokens(text.starts_with(' ') ? alone_ : 0, 256);
    for (size_t i = 0; i < text.size(); ++i) {
      tokens.push_back(static_cast<unsigned char>(text[i]));
      if (i > 0 && text[i] == '\n' && text[i - 1] == '.') tokens.insert(tokens.end(), inside_, 257);
    }
    return tokens;
  }

 private:
  size_t inside_, alone_;
};

// Bytes, but a paragraph's end is one token, and so are what a ChatML template writes.
class ChatTokenizer : public ByteTokenizer {
 public:
  static constexpr Token kBos = 256, kStart = 257, kEnd = 258, kParagraph = 259;
  ChatTokenizer() {
    specials_.add("<|im_start|>", kStart);
    specials_.add("<|im_end|>", kEnd);
  }
  Tokens encode(std::string_view text) const override {
    Tokens tokens;
    while (!text.empty()) {
      const bool paragraph = text.starts_with(".\n\n");
      tokens.push_back(paragraph ? kParagraph : static_cast<unsigned char>(text.front()));
      text.remove_prefix(paragraph ? 3 : 1);
    }
    return tokens;
  }
  Tokens encode_prompt(std::span<const PromptPart> parts) const override {
    return encode_runs(specials_, parts, [this](const std::string& text, bool) { return encode(text); });
  }
  int vocabulary_size() const override { return 260; }
  std::optional<Token> bos() const override { return kBos; }

 private:
  SpecialTokens specials_;
};

// A token a run of non-spaces with the spaces before it: "is:" and " 481793." are whole words, so a value can
// never be asked for apart from its full stop.
class WordTokenizer : public Tokenizer {
 public:
  Tokens encode(std::string_view text) const override {
    Tokens tokens;
    while (!text.empty()) {
      size_t end = text.find_first_not_of(" \n");
      end =
          end == std::string_view::npos ? text.size() : std::min(text.find_first_of(" \n", end), text.size());
      const std::string hash = hash_hex(text.substr(0, end));
      tokens.push_back(Token(std::stoul(hash.substr(0, 7), nullptr, 16)));
      text.remove_prefix(end);
    }
    return tokens;
  }
  std::string decode(const Tokens&) const override { return {}; }
  int vocabulary_size() const override { return 1 << 28; }
  std::optional<Token> bos() const override { return 0; }
  std::optional<Token> eos() const override { return std::nullopt; }
  std::string hash() const override { return "words"; }
};

}  // namespace kveval
