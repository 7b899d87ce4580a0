// The tokenizer and the chat template of a Hugging Face directory.
#pragma once

#include <string>

#include "engine/model/hf_config.h"
#include "engine/model/weights.h"

namespace kveval {

// Fills in tokenizer, chat and chat_error. The tokenizer has as many pieces as `config` has rows.
// Throws Error{bad_file} naming file and key.
void read_hf_text(const std::string& directory, const HfConfig& config, Model& model);

}  // namespace kveval
