// The parts of `kveval model`, a file for what belongs together.
#pragma once

#include <string>
#include <string_view>

#include "harness/commands/commands.h"

namespace kveval {

// `kveval model list` and `kveval list models`.
void print_models(bool json, const Context& context);

void add_model_inspect(CLI::App& model, Context& context);
void add_model_tokenize(CLI::App& model, Context& context);
void add_model_logits(CLI::App& model, Context& context);
void add_model_generate(CLI::App& model, Context& context);

// A token's text between quotes, everything visible: line ends, control characters and bytes that are no
// UTF-8 as escapes.
std::string quoted_piece(std::string_view text);

}  // namespace kveval
