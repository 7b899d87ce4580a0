// Text to token ids and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kveval {

using Token = int32_t;
using Tokens = std::vector<Token>;

// A stretch of a rendered prompt. Special tokens are recognised where the prompt's template wrote them, never
// in what stands between.
struct PromptPart {
  std::string text;
  bool literal = false;  // the template's own words
};

// Immutable after construction, so threads may share one.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Special tokens written out in `text` are plain characters here: a haystack can never smuggle one in.
  // Adds neither BOS nor EOS.
  virtual Tokens encode(std::string_view text) const = 0;
  // The same, with the special tokens of literal parts. What stands between two of them is encoded as one
  // text, also across parts. A tokenizer that has no special tokens encodes the joined text.
  virtual Tokens encode_prompt(std::span<const PromptPart> parts) const {
    std::string text;
    for (const PromptPart& part : parts) text += part.text;
    return encode(text);
  }
  // May be cut inside a character, where a token is.
  virtual std::string decode(const Tokens& tokens) const = 0;
  // What one token stands for, as a person reads a vocabulary: special tokens by their names.
  virtual std::string piece(Token token) const { return decode({token}); }

  virtual int vocabulary_size() const = 0;
  virtual std::optional<Token> bos() const = 0;  // prepended to a prompt when the model wants one
  virtual std::optional<Token> eos() const = 0;
  virtual std::string hash() const = 0;            // XXH3-128 of the tokenizer's definition, 32 hex digits
  virtual std::string kind() const { return {}; }  // for people: "byte-level BPE (qwen2)"
};

}  // namespace kveval
