// The special tokens of a vocabulary, found in what a template wrote.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/text/tokenizer.h"

namespace kveval {

// Text between special tokens, and the one that ends it, if any.
struct PromptRun {
  std::string text;
  std::optional<Token> special;
};

class SpecialTokens {
 public:
  void add(std::string text, Token id);

  // Where several begin at one place the longest counts. The last run has no special token.
  std::vector<PromptRun> split(std::span<const PromptPart> parts) const;
  std::string_view text_of(Token id) const;  // empty when it is none of them; looks at each

 private:
  struct Match {
    size_t length = 0;
    Token id = 0;
  };
  std::optional<Match> match_at(std::string_view text) const;

  std::unordered_map<std::string, Token> ids_;
  std::array<size_t, 256> longest_{};  // by first byte
};

// Tokenizer::encode_prompt: `encode` (text, whether it is the prompt's first) makes the tokens of the texts
// between special tokens.
template <class Encode>
Tokens encode_runs(const SpecialTokens& specials, std::span<const PromptPart> parts, const Encode& encode) {
  Tokens tokens;
  bool first = true;
  for (const PromptRun& run : specials.split(parts)) {
    const Tokens encoded = encode(run.text, first);
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
    if (run.special) tokens.push_back(*run.special);
    first = false;
  }
  return tokens;
}

// Throws Error{run} for a token that a vocabulary of `size` does not have.
void check_token(Token token, int size);

}  // namespace kveval
