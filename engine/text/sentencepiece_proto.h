// A vocabulary as the SentencePiece library reads it.
#pragma once

#include <string>

#include "engine/text/vocabulary.h"

namespace kveval {

// A serialized ModelProto (sentencepiece_model.proto) for BPE with byte fallback and identity normalization
// that adds no space before a text; vocabulary.prefix is the tokenizer's. `vocabulary` passed check(). Throws
// Error{bad_file} when it has no unknown piece or more than one, or not exactly one byte piece for each byte.
std::string sentencepiece_proto(const Vocabulary& vocabulary);

}  // namespace kveval
