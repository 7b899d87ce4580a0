// How byte-level BPE tokenizers cut a text before they merge within each piece.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kveval {

// The names are GGUF's; what models with this pre-tokenizer do besides.
struct PreTokenizerDefinition {
  std::string_view name;
  std::vector<std::string_view> aliases;
  std::vector<std::string_view> patterns;  // each isolates its matches in every piece the one before has left
  bool ignore_merges = false;
  bool nfc = false;
  bool add_bos = false;
};

// Throws Error{bad_file} listing the names there are.
const PreTokenizerDefinition& pre_tokenizer_named(std::string_view name);
// With this single pattern, as a tokenizer.json writes it; null when there is none.
const PreTokenizerDefinition* pre_tokenizer_with_pattern(std::string_view pattern);

class PreTokenizer {
 public:
  explicit PreTokenizer(const PreTokenizerDefinition& definition);
  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  // `text` is valid UTF-8; the pieces are views into it, in order, none empty, and together all of it. Time
  // is linear in the text's length.
  std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct Pattern;  // PCRE2's
  std::vector<std::unique_ptr<const Pattern>> patterns_;
};

}  // namespace kveval
