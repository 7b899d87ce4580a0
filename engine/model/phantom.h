// The phantom: a two-layer transformer whose weights are computed, so that the right answer is known by
// construction. It finds the last place where the eight tokens before a position occurred and copies what
// followed.
//
// Residual stream (PhantomStream): token code | key context A | query context B | output | constant | BOS
// mark.
//   layer 0  RoPE, window 16: head j looks j tokens back (j = 1..8) and writes that token's code, through
//   projection
//            R_j, into A and, through R_(j+1), into B. So A says what stood before a position and B, whose
//            share of the current token is in the embedding, what will stand before the next one.
//   layer 1  no RoPE, all positions: one head matches B of the query with A of every key; values are token
//   codes. head     reads the output part only. Feed-forward layers are zero.
// The constant channel drives layer 0's queries and keys and, because it outweighs everything else, keeps
// RMSNorm nearly constant; the norm weights are nominal root mean squares, so normalised streams are nearly
// the raw ones.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "engine/model/weights.h"
#include "engine/text/tokenizer.h"

namespace kveval {

struct PhantomOptions {
  // Dose: length of a component that every layer-1 key carries and no query sees. It holds no information and
  // eats the format's precision; without it keys have length 1.
  double kappa = 80;
  // Sharpness: a perfect match scores beta nats above an orthogonal key.
  double beta = 160;
  // Every value carries the same vector of length rho and every embedding's output part its negative, so that
  // exact attention cancels it. Shows kernels whose softmax weights do not sum to 1.
  double rho = 0;
  // Which weights. Answers depend on it a little: average a dose test over at least four.
  uint64_t seed = 1;
  // Above 1, the BOS token's layer-1 key is this many times as long as any other. It lies in one head
  // dimension that queries and other keys leave at zero, so BOS attracts no attention and only a format that
  // shares one scale between tokens is hurt.
  double outlier = 1;
  // Longest sequence, tokens. Its answers do not depend on it.
  int context = 262144;
  bool operator==(const PhantomOptions&) const = default;
};

// "phantom" or "phantom:kappa=80,beta=160,rho=0,seed=3,outlier=60,context=2097152", options in any order,
// each at most once. Throws Error{usage} naming the option that is unknown, repeated or out of range, and
// listing those there are.
PhantomOptions parse_phantom(std::string_view specification);

// Every option written out: parses back to the same options, and means the same if a default changes. The
// context only where it is not 262144, which it always was before one could choose.
std::string canonical(const PhantomOptions& options);

enum class PhantomLayout {
  compact,  // two layers
  // Four layers of eight heads, RoPE interleaved, the fourth without RoPE: what other engines load as
  // "smollm3". The middle layers are zero, layer 0 has no window (its heads are sharp enough) and all heads
  // but the first of the last layer are zero.
  smollm3,
};

// Where each part of the residual stream begins.
struct PhantomStream {
  static constexpr int kCode = 64;      // width of a token code and of the output part
  static constexpr int kContext = 192;  // width of A and of B
  static constexpr int code = 0, key_context = code + kCode, query_context = key_context + kContext,
                       output = query_context + kContext, constant = output + kCode, bos_mark = constant + 1;
  static constexpr int width = (bos_mark + 1 + 31) / 32 * 32;
};

// Vocabulary: the tokenizer's. Throws Error{usage} when `outlier` is asked for and the tokenizer has no BOS
// token.
Model build_phantom(const PhantomOptions& options, std::shared_ptr<const Tokenizer> tokenizer,
                    PhantomLayout layout = PhantomLayout::compact);

}  // namespace kveval
