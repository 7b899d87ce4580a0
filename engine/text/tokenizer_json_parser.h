// The large parts of a tokenizer.json, read as they come, and the rest as a document.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/vocabulary.h"

namespace kveval {

struct ModelTables {
  struct Piece {
    Token id;
    std::string text;
  };
  std::vector<Piece> pieces;        // model.vocab, in the file's order
  std::vector<std::string> merges;  // model.merges, "left right"
};

// Returns the rest: an object, in which vocab and merges are empty. Memory stays a small multiple of the
// text's length: a document of half a million merges would take ten times. Throws Error{bad_file} for
// malformed JSON, a member that is there twice, more than 64 levels, an id that is none and a merge that is
// no pair.
nlohmann::json parse_tokenizer_json(std::string_view text, ModelTables& tables);

// Any other JSON file, an object, under the same rules; `name` begins the messages.
nlohmann::json parse_json(std::string_view name, std::string_view text);

}  // namespace kveval
