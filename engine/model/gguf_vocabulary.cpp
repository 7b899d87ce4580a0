#include "engine/model/gguf_vocabulary.h"

#include <fmt/format.h>

#include <cstdint>
#include <string_view>

#include "engine/error.h"

namespace kveval {
namespace {

std::optional<Token> read_id(GgufMetadata& metadata, std::string_view key) {
  const auto id = metadata.count(key, INT32_MAX);
  return id ? std::optional<Token>(Token(*id)) : std::nullopt;
}

// kveval puts nothing behind a prompt and takes nothing out of it.
void refuse_if_set(GgufMetadata& metadata, std::string_view key, std::string_view what) {
  if (metadata.flag(key).value_or(false))
    throw metadata.error(key, fmt::format("is true: kveval does not {}", what));
}

void read_pieces(GgufMetadata& metadata, size_t rows, Vocabulary& vocabulary) {
  const auto pieces = metadata.texts("tokenizer.ggml.tokens");
  if (!pieces) throw metadata.error("tokenizer.ggml.tokens", "is missing");
  if (pieces->size() > rows)
    throw metadata.error(
        "tokenizer.ggml.tokens",
        fmt::format("has {} pieces, tensor 'token_embd.weight' {} rows", pieces->size(), rows));
  vocabulary.pieces.assign(pieces->begin(), pieces->end());

  const auto kinds = metadata.integers("tokenizer.ggml.token_type", INT32_MIN, INT32_MAX);
  if (!kinds) throw metadata.error("tokenizer.ggml.token_type", "is missing");
  vocabulary.kinds.reserve(kinds->size());
  for (const int64_t kind : *kinds) vocabulary.kinds.push_back(piece_kind(kind));
}

}  // namespace

Vocabulary read_gguf_vocabulary(GgufMetadata& metadata, size_t rows) {
  Vocabulary vocabulary;
  vocabulary.model = metadata.need_text("tokenizer.ggml.model");
  read_pieces(metadata, rows, vocabulary);
  // Some writers give byte-level BPE scores, which its merges do not need.
  const auto scores = metadata.numbers("tokenizer.ggml.scores");
  if (vocabulary.model == "gpt2") {
    vocabulary.pre_tokenizer = metadata.need_text("tokenizer.ggml.pre");
    if (const auto merges = metadata.texts("tokenizer.ggml.merges")) {
      if (merges->size() > kMaxMerges)
        throw metadata.error("tokenizer.ggml.merges",
                             fmt::format("has {} merges, at most {} can be", merges->size(), kMaxMerges));
      vocabulary.merges.assign(merges->begin(), merges->end());
    }
  } else {
    metadata.text("tokenizer.ggml.pre");
    if (scores) vocabulary.scores = *scores;
  }

  vocabulary.bos = read_id(metadata, "tokenizer.ggml.bos_token_id");
  vocabulary.eos = read_id(metadata, "tokenizer.ggml.eos_token_id");
  vocabulary.unknown = read_id(metadata, "tokenizer.ggml.unknown_token_id");
  vocabulary.add_bos = metadata.flag("tokenizer.ggml.add_bos_token");
  if (const auto prefix = metadata.flag("tokenizer.ggml.add_space_prefix"))
    vocabulary.prefix = *prefix ? SpacePrefix::every_text : SpacePrefix::none;
  refuse_if_set(metadata, "tokenizer.ggml.add_eos_token", "end a prompt with EOS");
  refuse_if_set(metadata, "tokenizer.ggml.add_sep_token", "end a prompt with a separator");
  refuse_if_set(metadata, "tokenizer.ggml.remove_extra_whitespaces", "take spaces out of a prompt");
  pad(vocabulary, rows);
  return vocabulary;
}

}  // namespace kveval
