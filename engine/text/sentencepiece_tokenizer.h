// Tokenizers defined by a SentencePiece model.
#pragma once

#include <memory>
#include <string_view>

#include "engine/text/tokenizer.h"
#include "engine/text/vocabulary.h"

namespace kveval {

// `serialized_model_proto` is the content of a .model file; hash() is that of these bytes. Throws
// Error{bad_file} when it does not parse or describes no usable vocabulary.
//
// Text must be UTF-8: an invalid byte becomes U+FFFD. U+2581 is SentencePiece's own mark for a space and
// reads back as one; with byte fallback and identity normalization every other text survives encode and
// decode unchanged.
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string_view serialized_model_proto);

// `vocabulary` passed check(). User-defined pieces are text and match wherever they stand; control pieces
// only in the literals of encode_prompt(). decode() takes away the space that vocabulary.prefix adds.
std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(const Vocabulary& vocabulary);

}  // namespace kveval
