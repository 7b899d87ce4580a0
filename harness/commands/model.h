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

// MODEL, which every part but list and pull begins with.
void add_model_argument(CLI::App& command, std::string& model);

// Refuses words from the command line that no tokenizer could keep: "WHAT is not UTF-8 from byte 3 on".
void check_utf8(std::string_view text, const char* what);

// A token's text between quotes, everything visible: line ends, control characters and bytes that are no
// UTF-8 as escapes.
std::string quoted_piece(std::string_view text);

}  // namespace kveval
