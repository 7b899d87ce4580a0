// From a model's name, as the user writes it, to the model.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/weights.h"

namespace kveval {

// A real checkpoint that ships in Python packages (catalog.json).
struct CatalogEntry {
  std::string name;
  std::string description;
  std::string licence;
  uint64_t bytes = 0;                 // of the GGUF file
  std::string sha256;                 // of the same
  std::vector<std::string> packages;  // NAME==VERSION; their pieces are concatenated in this order
};

std::span<const CatalogEntry> catalog();
const CatalogEntry* find_in_catalog(std::string_view name);  // null when there is none

// Where the file of a catalogued model is, or would be: ${KVEVAL_MODELS:-~/.cache/kveval/models}/NAME.gguf.
// Throws Error{usage} when neither KVEVAL_MODELS nor HOME is set.
std::string catalog_path(std::string_view name);

// In this order:
//   "phantom" or "phantom:kappa=80,..."  computed (engine/model/phantom.h), with the embedded tokenizer
//   a catalogued name                    the file at catalog_path()
//   a path                               a GGUF file, or the first of a split one; a Hugging Face directory
// Model::name loads the same model again, from any directory. Throws Error{usage} for anything else, listing
// the names there are, and for a catalogued model that is not here, saying how to get it.
std::shared_ptr<const Model> load_model(std::string_view specification);

}  // namespace kveval
