#include "harness/calibration.h"

#include <cstddef>
#include <string>

#include "tasks/haystack.h"

namespace kveval {
namespace {

constexpr size_t kTokens = 2048;
constexpr uint64_t kSeed = 0xCA11B;  // any number no suite's seed is likely to lead to

}  // namespace

Tokens calibration_tokens(const Tokenizer& tokenizer) {
  const PieceSource next = generated_hay(kSeed);
  Tokens tokens;
  if (const auto bos = tokenizer.bos()) tokens.push_back(*bos);
  while (tokens.size() < kTokens) {
    const Tokens piece = tokenizer.encode(next());
    tokens.insert(tokens.end(), piece.begin(), piece.end());
  }
  tokens.resize(kTokens);
  return tokens;
}

}  // namespace kveval
