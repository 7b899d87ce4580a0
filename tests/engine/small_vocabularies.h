// Vocabularies small enough to write down, and BPE done the slow obvious way.
#pragma once

#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/random.h"
#include "engine/text/vocabulary.h"

namespace kveval {

// The character that stands for a byte, by GPT-2's rule: printable bytes are themselves, the others are
// U+0100 on.
std::string byte_character(int byte);
std::string in_byte_alphabet(const std::string& bytes);

using MergeList = std::vector<std::pair<std::string, std::string>>;  // bytes, the first is merged first

// Pieces 0 ... 255 are the bytes, then what the merges make, then "<s>", "</s>" (control) and "<tool>"
// (user-defined).
Vocabulary byte_level_vocabulary(const std::string& pre_tokenizer, const MergeList& merges);
MergeList random_merges(Random& random, const std::string& letters, size_t count);

// Merges the best pair of neighbours, the leftmost of equals, until there is none: quadratic.
template <class Score>  // std::optional<number>(left, right), the smallest is best
std::vector<std::string> merge_slowly(std::vector<std::string> symbols, Score score) {
  while (true) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto here = score(symbols[i], symbols[i + 1]);
      if (here && (best == symbols.size() || *here < *score(symbols[best], symbols[best + 1]))) best = i;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + std::ptrdiff_t(best) + 1);
  }
}

// "<unk>", "<s>", "</s>", the 256 bytes, then `pieces`, earlier ones scored higher. In the pieces "_" is
// U+2581.
Vocabulary sentencepiece_vocabulary(const std::vector<std::string>& pieces);

std::string with_space_marks(std::string text);  // "_" -> U+2581

// What Hugging Face writes for a vocabulary: pieces of these kinds as added tokens, all of them in the model,
// which has no merges yet.
nlohmann::json model_json(const Vocabulary& vocabulary, const std::set<PieceKind>& added);
nlohmann::json byte_level_step(bool has_pattern);
nlohmann::json byte_level_json(const Vocabulary& vocabulary);  // a whole tokenizer.json, gpt-2's pattern

}  // namespace kveval
