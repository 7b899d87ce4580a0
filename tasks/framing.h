// How a task's words become a prompt: the model's chat template around them, one token sequence, one cut.
//
//   [BOS] before_prompt  text  question  before_answer  answer
//   |------- shared prefix --|-------- a branch -------------|
//
// Tokens are those of the whole prompt, also where the tokenizer merges across the end of the text (many have
// one token for ".\n\n"): the prefix then ends a token or two earlier, in every branch alike.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat.h"
#include "engine/text/tokenizer.h"

namespace kveval {

struct Framing {
  const Tokenizer& tokenizer;
  ChatTemplate chat = plain_chat();
};

// One question on a text: the user's last words, and the words that the answer begins with.
struct Asked {
  std::string question;
  std::string answer;
};

// As text, special tokens written out. Joined, the two are the prompt.
std::string prefix_text(const Framing& framing, std::string_view text);
std::string branch_text(const Framing& framing, const Asked& asked);

Tokens prefix_tokens(const Framing& framing, std::string_view text);                      // BOS included
Tokens prompt_tokens(const Framing& framing, std::string_view text, const Asked& asked);  // BOS included

// The branches of a text whose prefix_tokens are `prefix`, and `prefix` shortened to what every whole prompt
// begins with. Throws Error{run} when that is nothing.
std::vector<Tokens> cut_branches(const Framing& framing, std::string_view text, std::span<const Asked> asked,
                                 Tokens& prefix);

// What ends an answer besides EOS. Throws Error{bad_file} when the template's end is no token of its own.
Tokens stop_tokens(const Framing& framing);

}  // namespace kveval
