#include "engine/text/special_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/error.h"

namespace kveval {

void SpecialTokens::add(std::string text, Token id) {
  size_t& longest = longest_[static_cast<unsigned char>(text.at(0))];
  longest = std::max(longest, text.size());
  ids_.emplace(std::move(text), id);
}

std::optional<SpecialTokens::Match> SpecialTokens::match_at(std::string_view text) const {
  const size_t longest = std::min(longest_[static_cast<unsigned char>(text.front())], text.size());
  for (size_t length = longest; length > 0; --length)
    if (const auto found = ids_.find(std::string(text.substr(0, length))); found != ids_.end())
      return Match{length, found->second};
  return std::nullopt;
}

std::string_view SpecialTokens::text_of(Token id) const {
  for (const auto& [text, of] : ids_)
    if (of == id) return text;
  return {};
}

std::vector<PromptRun> SpecialTokens::split(std::span<const PromptPart> parts) const {
  std::vector<PromptRun> runs(1);
  for (const PromptPart& part : parts) {
    if (!part.literal) {
      runs.back().text += part.text;
      continue;
    }
    std::string_view rest = part.text;
    while (!rest.empty()) {
      if (const auto match = match_at(rest)) {
        runs.back().special = match->id;
        runs.emplace_back();
        rest.remove_prefix(match->length);
      } else {
        runs.back().text += rest.front();
        rest.remove_prefix(1);
      }
    }
  }
  return runs;
}

void check_token(Token token, int size) {
  if (token < 0 || token >= size)
    throw Error(ErrorKind::run,
                fmt::format("token {} is outside the tokenizer's vocabulary of {}", token, size));
}

}  // namespace kveval
