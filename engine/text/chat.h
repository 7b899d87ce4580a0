// How a prompt is framed for a model: text put before the user's words and before the answer.
//
// A checkpoint's Jinja template is not run: its family is recognised, its literals are read from it, and what
// is neither is refused. Literals are encoded with special tokens, what users and models wrote without
// (Tokenizer::encode_prompt). No literal here begins a text: put tokenizer.bos() before the first one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace kveval {

struct ChatTemplate {
  std::string family;  // recorded with every run
  // Opens the user's turn, ahead of the shared prefix; the template's own system text too.
  std::string before_prompt;
  std::string before_answer;  // closes it and opens the assistant's, between a question and its answer prefix
  std::string next_prompt{};  // closes the assistant's turn and opens the user's next

  // In place of before_prompt when the user gives a system text: before and after it.
  std::string before_system{};
  std::string after_system{};        // empty: the template has no place for a system text
  bool system_in_last_turn = false;  // of a conversation; else in the first
  // Whether white space around what was written is stripped.
  bool trims_system = false, trims_user = false, trims_answer = false;
  std::string end_of_answer{};  // the special token that ends an answer; empty: the tokenizer's EOS
};

// For base models: nothing around the words, the answer continues the text.
ChatTemplate plain_chat();

// Families: chatml (Qwen, SmolLM), gemma, llama-3, mistral-v1, mistral-v3, mistral-v3-tekken, mistral-v7 and
// mistral-v7-tekken. `jinja` is the checkpoint's template, `eos` the piece that its eos_token stands for.
// Throws Error{bad_file} naming the template by its hash and beginning when it is of another family, or when
// its own system text cannot be read from it: it is computed, from the date for instance.
ChatTemplate detect_chat(std::string_view jinja, std::string_view eos);

struct ChatTurn {
  std::string user;
  std::string assistant;  // of the last turn: the beginning of the answer, may be empty
};

// From after BOS to where the answer goes on. At least one turn. Throws Error{usage} for a system text where
// the template has none.
std::vector<PromptPart> render(const ChatTemplate& chat, const std::optional<std::string>& system,
                               const std::vector<ChatTurn>& turns);

std::string template_hash(const ChatTemplate& chat);  // XXH3-128 of every field, 32 hex digits

}  // namespace kveval
