#include "engine/text/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/quote.h"
#include "engine/text/jinja_literals.h"
#include "engine/text/utf8.h"

namespace kveval {
namespace {

using Literals = std::vector<JinjaLiteral>;

constexpr std::string_view kSystem = "system";
// Real ones have up to some 20 KB; literals take ten times the text that they are read from.
constexpr size_t kMaxTemplateBytes = 256 << 10;

struct Template {
  std::string_view jinja;
  Literals literals;

  Error refuse(const std::string& why) const {
    return Error(ErrorKind::bad_file,
                 fmt::format("the chat template {} (XXH3 {}) {}", quote(jinja), hash_hex(jinja), why),
                 "kveval knows ChatML, Gemma, Llama 3 and Mistral; '--chat plain' asks without a template.");
  }

  bool writes(std::string_view text) const {
    for (const JinjaLiteral& literal : literals)
      if (literal.text.find(text) != std::string::npos) return true;
    return false;
  }

  // What opens an answer must be all that does: more would stand before the answer prefix.
  void require_opening(std::string_view opening) const {
    if (!writes(opening)) throw refuse(fmt::format("does not write {}", quote(opening)));
    for (const JinjaLiteral& literal : literals)
      if (literal.text.find(opening) != std::string::npos && !literal.text.ends_with(opening))
        throw refuse(fmt::format("opens an answer with {}", quote(literal.text)));
  }
  void require(std::string_view text) const {
    if (!writes(text)) throw refuse(fmt::format("does not write {}", quote(text)));
  }

  bool mentions(std::string_view code) const { return jinja.find(code) != std::string_view::npos; }
  bool trims() const { return mentions("| trim") || mentions("|trim"); }
};

// The literal value of `{% set NAME = "..." %}` for the first name that holds `part`; what is computed is
// refused.
std::optional<std::string> assigned(const Template& chat, std::string_view part) {
  for (const JinjaLiteral& literal : chat.literals) {
    const std::string_view code = literal.before;
    const bool is_set = code.starts_with("set ") && code.ends_with("=") &&
                        code.find(part) != std::string_view::npos && code.find('=') + 1 == code.size();
    const bool is_otherwise =
        part == kSystem && code == "else" && literal.text.find(' ') != std::string::npos;
    if ((!is_set && !is_otherwise) || literal.text.empty()) continue;
    if (!literal.after.empty()) throw chat.refuse("computes a system text of its own");
    return literal.text;
  }
  return std::nullopt;
}

std::optional<std::string> text_between(const Template& chat, std::string_view begin, std::string_view end) {
  std::optional<std::string> found;
  for (const JinjaLiteral& literal : chat.literals) {
    const size_t at = literal.text.find(begin);
    if (at == std::string::npos) continue;
    const size_t from = at + begin.size(), to = literal.text.find(end, from);
    if (to == std::string::npos || to == from) continue;
    const std::string text = literal.text.substr(from, to - from);
    if (found && *found != text) throw chat.refuse("has two system texts of its own");
    found = text;
  }
  return found;
}

// Fills in before_prompt: the template's own system text, or the user's turn alone.
ChatTemplate finish(ChatTemplate chat, const std::optional<std::string>& own_system,
                    const std::string& user_opening) {
  chat.before_prompt = own_system ? chat.before_system + *own_system + chat.after_system : user_opening;
  return chat;
}

ChatTemplate chatml(const Template& from) {
  const std::string user = "<|im_start|>user\n", answer = "<|im_start|>assistant\n";
  if (from.mentions("<|im_sep|>")) throw from.refuse("is of the family phi-4");
  from.require_opening(answer);
  from.require("<|im_end|>");
  std::optional<std::string> system = text_between(from, "<|im_start|>system\n", "<|im_end|>");
  if (!system) system = assigned(from, kSystem);
  return finish({.family = "chatml",
                 .before_prompt = {},
                 .before_answer = "<|im_end|>\n" + answer,
                 .next_prompt = "<|im_end|>\n" + user,
                 .before_system = "<|im_start|>system\n",
                 .after_system = "<|im_end|>\n" + user,
                 .trims_user = from.trims(),
                 .trims_answer = from.trims(),
                 .end_of_answer = "<|im_end|>"},
                system, user);
}

ChatTemplate gemma(const Template& from) {
  const std::string user = "<start_of_turn>user\n", answer = "<start_of_turn>model\n";
  from.require_opening(answer);
  from.require("<end_of_turn>\n");
  // Gemma 2 refuses a system text, Gemma 3 puts it into the user's first turn.
  const bool takes_system = from.mentions("first_user_prefix");
  return finish({.family = "gemma",
                 .before_prompt = {},
                 .before_answer = "<end_of_turn>\n" + answer,
                 .next_prompt = "<end_of_turn>\n" + user,
                 .before_system = takes_system ? user : "",
                 .after_system = takes_system ? "\n\n" : "",
                 .trims_user = from.trims(),
                 .trims_answer = from.trims(),
                 .end_of_answer = "<end_of_turn>"},
                std::nullopt, user);
}

// Llama 3.1 and later state two dates ahead of every system text, and write them when there is none. Where
// the second is today's unless that is unknown, it is taken for unknown: a prompt must not change from day to
// day.
std::optional<std::string> llama3_dates(const Template& from) {
  const std::string_view cutoff = "Cutting Knowledge Date: ", today = "Today Date: ";
  if (!from.writes(cutoff)) return std::nullopt;
  std::string dates;
  for (const JinjaLiteral& literal : from.literals)
    if (literal.text.starts_with(cutoff)) dates = literal.text;
  const auto date = assigned(from, "date_string");
  if (!date || !dates.ends_with('\n') || !from.writes(today))
    throw from.refuse("computes a system text of its own");
  return fmt::format("{}{}{}\n\n", dates, today, *date);
}

ChatTemplate llama3(const Template& from) {
  const std::string header = "<|start_header_id|>", turn = "<|end_header_id|>\n\n", end = "<|eot_id|>";
  const std::string user = header + "user" + turn, answer = header + "assistant" + turn;
  from.require_opening(answer);
  from.require(end);
  const auto dates = llama3_dates(from);
  return finish({.family = "llama-3",
                 .before_prompt = {},
                 .before_answer = end + answer,
                 .next_prompt = end + user,
                 .before_system = header + "system" + turn + dates.value_or(""),
                 .after_system = end + user,
                 .trims_system = from.trims(),
                 .trims_user = from.trims(),
                 .trims_answer = from.trims(),
                 .end_of_answer = end},
                dates ? std::optional<std::string>("") : std::nullopt, user);
}

// The one literal that ends or begins with `mark`, spaces around it included.
std::string with_spaces(const Template& from, std::string_view mark) {
  std::optional<std::string> found;
  for (const JinjaLiteral& literal : from.literals) {
    const size_t at = literal.text.find(mark);
    if (at == std::string::npos) continue;
    const size_t end = at + mark.size();
    std::string spaced(mark);
    if (at > 0 && literal.text[at - 1] == ' ') spaced.insert(0, " ");
    if (end < literal.text.size() && literal.text[end] == ' ') spaced += ' ';
    if (found && *found != spaced)
      throw from.refuse(fmt::format("writes both {} and {}", quote(*found), quote(spaced)));
    found = spaced;
  }
  if (!found) throw from.refuse(fmt::format("does not write {}", quote(mark)));
  return *found;
}

ChatTemplate mistral(const Template& from, std::string_view eos) {
  if (from.mentions("<<SYS>>")) throw from.refuse("is of the family llama-2");
  const std::string user = with_spaces(from, "[INST]");
  std::string answer = with_spaces(from, "[/INST]");
  const bool closes_with_space = answer.starts_with(' '), opens_with_space = user.ends_with(' ');
  std::string family = closes_with_space  ? "mistral-v1"
                       : opens_with_space ? "mistral-v3"
                                          : "mistral-v3-tekken";
  std::string before_system, after_system;
  if (from.writes("[SYSTEM_PROMPT]")) {
    before_system = with_spaces(from, "[SYSTEM_PROMPT]");
    after_system = with_spaces(from, "[/SYSTEM_PROMPT]") + user;
    family = before_system.ends_with(' ') ? "mistral-v7" : "mistral-v7-tekken";
  } else if (from.mentions("system_message") && from.writes("\n\n")) {
    before_system = user;
    after_system = "\n\n";
  }
  // Where answers begin with a space the template writes it, and the model when it answers by itself.
  for (const JinjaLiteral& literal : from.literals)
    if (literal.text == " " && literal.after.starts_with("+ message")) {
      if (!answer.ends_with(' ')) answer += ' ';
      break;
    }
  return finish({.family = family,
                 .before_prompt = {},
                 .before_answer = answer,
                 .next_prompt = std::string(eos) + user,
                 .before_system = before_system,
                 .after_system = after_system,
                 .system_in_last_turn = from.mentions("loop.last and system_message"),
                 .trims_answer = from.trims(),
                 .end_of_answer = std::string(eos)},
                assigned(from, kSystem), user);
}

std::string trimmed(std::string_view text, bool front, bool back) {
  constexpr std::string_view kSpace = " \t\n\v\f\r";
  if (front) text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  if (back) text = text.substr(0, text.find_last_not_of(kSpace) + 1);
  return std::string(text);
}

}  // namespace

ChatTemplate plain_chat() { return {.family = "plain", .before_prompt = "", .before_answer = ""}; }

ChatTemplate detect_chat(std::string_view jinja, std::string_view eos) {
  if (jinja.size() > kMaxTemplateBytes)
    throw Template{jinja, {}}.refuse(fmt::format("is longer than the limit of {} bytes", kMaxTemplateBytes));
  const Template from{jinja, jinja_literals(jinja)};
  if (!is_utf8(jinja)) throw from.refuse("is no UTF-8");
  if (from.writes("<|im_start|>")) return chatml(from);
  if (from.writes("[INST]")) return mistral(from, eos);
  if (from.writes("<start_of_turn>")) return gemma(from);
  if (from.writes("<|start_header_id|>")) return llama3(from);
  throw from.refuse("is of no family that kveval knows");
}

std::vector<PromptPart> render(const ChatTemplate& chat, const std::optional<std::string>& system,
                               const std::vector<ChatTurn>& turns) {
  if (turns.empty()) throw Error(ErrorKind::usage, "a conversation without a turn cannot be asked");
  std::vector<PromptPart> parts;
  const auto literal = [&parts](std::string text) { parts.push_back({std::move(text), true}); };
  const auto written = [&parts](std::string text) { parts.push_back({std::move(text), false}); };
  if (system && chat.after_system.empty())
    throw Error(ErrorKind::usage, fmt::format("the {} template has no place for a system text", chat.family),
                "put it into the prompt");
  const size_t last = turns.size() - 1, system_turn = chat.system_in_last_turn ? last : 0;
  for (size_t i = 0; i <= last; ++i) {
    const bool has_system = system && i == system_turn;
    literal(i > 0 ? chat.next_prompt : has_system ? chat.before_system : chat.before_prompt);
    if (has_system) {
      written(trimmed(*system, chat.trims_system, chat.trims_system));
      literal(chat.after_system);
    }
    written(trimmed(turns[i].user, chat.trims_user, chat.trims_user));
    // An answer that the model begins itself begins with its own space.
    const bool by_itself = i == last && turns[i].assistant.empty() && chat.before_answer.ends_with(' ');
    literal(by_itself ? trimmed(chat.before_answer, false, true) : chat.before_answer);
    written(trimmed(turns[i].assistant, chat.trims_answer, chat.trims_answer && i < last));
  }
  return parts;
}

std::string template_hash(const ChatTemplate& chat) {
  return hash_hex(
      nlohmann::json::array({chat.family, chat.before_prompt, chat.before_answer, chat.next_prompt,
                             chat.before_system, chat.after_system, chat.system_in_last_turn,
                             chat.trims_system, chat.trims_user, chat.trims_answer, chat.end_of_answer})
          .dump());
}

}  // namespace kveval
