// How a prompt is framed for a model: text put before the user's words and before the answer.
#pragma once

#include <string>

namespace kveval {

struct ChatTemplate {
  std::string family;         // recorded with every run
  std::string before_prompt;  // opens the user's turn, ahead of the shared prefix
  std::string before_answer;  // closes it and opens the assistant's, between a question and its answer prefix
};

// For base models: nothing around the words, the answer continues the text.
ChatTemplate plain_chat();

std::string template_hash(const ChatTemplate& chat);  // XXH3-128 of every field, 32 hex digits

}  // namespace kveval
