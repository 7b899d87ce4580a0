// Byte-level BPE: a text is cut by a pre-tokenizer's pattern, and in each piece pairs of neighbours are
// merged, beginning with its bytes.
#pragma once

#include <memory>

#include "engine/text/vocabulary.h"

namespace kveval {

// `vocabulary` passed check(). Throws Error{bad_file} for an unknown pre-tokenizer, a normal piece that is
// not written in the byte alphabet, and a merge that is malformed, there twice or names a piece that there is
// not.
//
// encode() takes any bytes: what is no UTF-8 is encoded byte by byte, and decode() gives it back. A byte that
// has no piece (SmolLM2 has none for 21 of them) is left out, as the models' own tokenizers do. Neither
// control nor user-defined pieces are recognised in encode(), both are in the literals of encode_prompt().
// decode() leaves control pieces out.
//
// Time is n log n in the longest piece and linear in the text.
std::shared_ptr<const Tokenizer> make_byte_bpe_tokenizer(const Vocabulary& vocabulary);

}  // namespace kveval
