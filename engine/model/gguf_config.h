// What the metadata of a GGUF file says about a model's shape and its RoPE.
//
// Keys are A.NAME, A being general.architecture. A key that is understood is read; one that is not stays
// unread, for the loader to refuse (engine/model/gguf_model.h).
#pragma once

#include <string_view>

#include "engine/model/config.h"
#include "engine/model/gguf.h"

namespace kveval {

// What an architecture adds to the plain llama block, and how its Q and K rows are ordered: the converter
// permutes llama's for pairs (2i, 2i + 1) and leaves the others'.
struct GgufArchitecture {
  std::string_view name;
  RopeStyle rope_style = RopeStyle::halves;
  Activation activation = Activation::silu;
  bool biases = false;            // of q, k and v: must be there, else they may
  bool head_norms = false;        // of every query and key head
  bool post_norms = false;        // of what attention and feed-forward add to the stream
  bool scales_embedding = false;  // by sqrt(width)
};

// Throws Error{bad_file} naming an architecture that kveval does not run and listing those it does.
const GgufArchitecture& gguf_architecture(GgufMetadata& metadata);

// Everything but the vocabulary, which is the embedding's. Looks at rope_freqs.weight too. Throws
// Error{bad_file} naming the key that is missing, out of range or means something kveval does not do.
ModelConfig read_gguf_config(Gguf& file, const GgufArchitecture& architecture);

}  // namespace kveval
