// The tokenizer in the metadata of a GGUF file.
#pragma once

#include <cstddef>

#include "engine/model/gguf.h"
#include "engine/text/vocabulary.h"

namespace kveval {

// The keys tokenizer.ggml.*, padded to the embedding's `rows`. Keys that would change tokens and are not
// understood stay unread. Throws Error{bad_file} naming the key that is missing or that asks for something
// kveval does not do; check() finds the rest.
Vocabulary read_gguf_vocabulary(GgufMetadata& metadata, size_t rows);

}  // namespace kveval
