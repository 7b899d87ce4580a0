// tokenizer.json and tokenizer_config.json, as Hugging Face checkpoints have them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/text/vocabulary.h"

namespace kveval {

// `json` is the content of a tokenizer.json: byte-level BPE with a pre-tokenizer that kveval knows, or BPE
// with byte fallback as SentencePiece models are converted to. Throws Error{bad_file} naming a normalizer,
// pre-tokenizer, decoder, post-processor or option that kveval does not know, and for malformed JSON; check()
// finds the rest.
//
// Such a file does not say which token ends a text, and says which begins it only when it is prepended: eos,
// and bos where unset, are read from config.json or tokenizer_config.json. It may have fewer pieces than the
// model has rows: see pad().
Vocabulary read_tokenizer_json(std::string_view json);

struct TokenizerConfig {
  std::optional<std::string> bos, eos;       // as pieces
  std::optional<std::string> chat_template;  // the one named "default" where there are several
};

// `json` is the content of a tokenizer_config.json. Throws Error{bad_file} for malformed JSON and types.
TokenizerConfig read_tokenizer_config(std::string_view json);

}  // namespace kveval
