// A GGUF file as a model: architectures llama (Mistral, SmolLM2), qwen2, qwen3 and gemma3.
//
// What is not understood is refused by name, never guessed: an architecture, a tensor that nobody uses or
// that has another shape than the keys say, a key of the architecture or the tokenizer that nobody reads.
#pragma once

#include <string>

#include "engine/model/weights.h"

namespace kveval {

// `path` is a GGUF file, or the first of a split model. The matrices view the file, which Model::files keeps
// mapped. Model::name is the absolute path. Opening allocates less than four times the file's size. Throws
// Error{bad_file} naming the file and what is wrong with it; a chat template that is not understood is not an
// error here but Model::chat_error.
Model read_gguf_model(const std::string& path);

}  // namespace kveval
