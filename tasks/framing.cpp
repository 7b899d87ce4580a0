#include "tasks/framing.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/error.h"

namespace kveval {
namespace {

constexpr size_t kEndBytes = 1024;
constexpr size_t kAgreeing = 32;  // tokens: more than any word has

std::string_view end_of(std::string_view text) {
  if (text.size() <= kEndBytes) return text;
  const size_t space = text.find(' ', text.size() - kEndBytes);
  return space == std::string_view::npos ? text : text.substr(space);
}

// Where a template puts nothing before the answer, the answer begins a line.
std::string user_text(const Framing& framing, std::string_view text, const Asked& asked) {
  const char* line_end = framing.chat.before_answer.empty() ? "\n" : "";
  return fmt::format("{}{}{}", text, asked.question, line_end);
}

Tokens with_bos(const Tokenizer& tokenizer, const std::vector<PromptPart>& parts) {
  Tokens tokens = tokenizer.encode_prompt(parts);
  // No template here begins with BOS, so it stands once.
  if (const auto bos = tokenizer.bos()) tokens.insert(tokens.begin(), *bos);
  return tokens;
}

}  // namespace

std::string prefix_text(const Framing& framing, std::string_view text) {
  return framing.chat.before_prompt + std::string(text);
}

std::string branch_text(const Framing& framing, const Asked& asked) {
  return user_text(framing, {}, asked) + framing.chat.before_answer + asked.answer;
}

Tokens prefix_tokens(const Framing& framing, std::string_view text) {
  return with_bos(framing.tokenizer, {{framing.chat.before_prompt, true}, {std::string(text), false}});
}

Tokens prompt_tokens(const Framing& framing, std::string_view text, const Asked& asked) {
  return with_bos(framing.tokenizer,
                  render(framing.chat, std::nullopt, {{user_text(framing, text, asked), asked.answer}}));
}

std::vector<Tokens> cut_branches(const Framing& framing, std::string_view text, std::span<const Asked> asked,
                                 Tokens& prefix) {
  // A tokenizer looks a word or two around, so the text's end gives the tokens of the whole at a fraction of
  // the time. Where it does not, because the two do not agree ahead of the cut, the whole text is taken.
  for (const std::string_view tail : {end_of(text), text}) {
    const Tokens behind = prefix_tokens(framing, tail);
    std::vector<Tokens> branches;
    size_t cut = behind.size();
    for (const Asked& one : asked) {
      const Tokens& prompt = branches.emplace_back(prompt_tokens(framing, tail, one));
      const auto differ = std::mismatch(behind.begin(), behind.end(), prompt.begin(), prompt.end());
      cut = std::min(cut, size_t(differ.first - behind.begin()));
    }
    const auto differ = std::mismatch(behind.rbegin(), behind.rend(), prefix.rbegin(), prefix.rend());
    const auto equal = size_t(differ.first - behind.rbegin());
    const size_t dropped = behind.size() - cut;
    if (tail.size() < text.size() && equal < dropped + kAgreeing) continue;
    if (cut == 0) break;
    prefix.resize(prefix.size() - dropped);
    for (Tokens& branch : branches) branch.erase(branch.begin(), branch.begin() + std::ptrdiff_t(cut));
    return branches;
  }
  throw Error(ErrorKind::run, "the tokenizer gives a text other tokens as soon as a question follows it");
}

Tokens stop_tokens(const Framing& framing) {
  const std::string& end = framing.chat.end_of_answer;
  if (end.empty()) return {};
  const std::vector<PromptPart> parts = {{end, true}};
  Tokens tokens = framing.tokenizer.encode_prompt(parts);
  if (tokens.size() != 1)
    throw Error(ErrorKind::bad_file,
                fmt::format("the {} template ends answers with '{}', which is {} tokens in this tokenizer",
                            framing.chat.family, end, tokens.size()),
                "The tokenizer is not the template's own; '--chat plain' asks without a template.");
  return tokens;
}

}  // namespace kveval
