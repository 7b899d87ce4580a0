#include "engine/text/jinja_literals.h"

#include <cstddef>
#include <optional>
#include <utility>

namespace kveval {
namespace {

std::string_view trimmed(std::string_view code) {
  constexpr std::string_view kIgnored = " \t\r\n-";
  const size_t begin = code.find_first_not_of(kIgnored);
  if (begin == std::string_view::npos) return {};
  return code.substr(begin, code.find_last_not_of(kIgnored) - begin + 1);
}

// The string that `code` begins with, quotes included; all of it when it does not end.
size_t quoted_length(std::string_view code) {
  size_t at = 1;
  while (at < code.size() && code[at] != code[0]) at += code[at] == '\\' ? 2 : 1;
  return at < code.size() ? at + 1 : code.size();
}

std::string unescaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    switch (c) {
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'r': out += '\r'; break;
      case '\n': break;  // the string goes on in the next line
      case '\\':
      case '\'':
      case '"': out += c; break;
      default: (out += '\\') += c;
    }
  }
  return out;
}

bool is_tag(std::string_view rest) {
  return rest.starts_with("{{") || rest.starts_with("{%") || rest.starts_with("{#");
}

// Bytes of the tag that `rest` begins with, its end included; strings in it may hold what looks like an end.
// Nothing when it does not end, and so neither when a string in it does not.
std::optional<size_t> tag_length(std::string_view rest, std::string_view end) {
  size_t at = 2;
  while (at < rest.size() && !rest.substr(at).starts_with(end))
    at += rest[at] == '\'' || rest[at] == '"' ? quoted_length(rest.substr(at)) : 1;
  return at < rest.size() ? std::optional<size_t>(at + end.size()) : std::nullopt;
}

void read_tag(std::string_view code, std::vector<JinjaLiteral>& literals) {
  size_t begin = 0;  // of the code before the next string
  bool has_string = false;
  for (size_t at = 0; at < code.size();) {
    if (code[at] != '\'' && code[at] != '"') {
      ++at;
      continue;
    }
    const size_t length = quoted_length(code.substr(at));
    const std::string_view before = trimmed(code.substr(begin, at - begin));
    if (has_string) literals.back().after = before;
    literals.push_back({unescaped(code.substr(at + 1, length - 2)), before, {}});
    has_string = true;
    at += length;
    begin = at;
  }
  if (has_string) literals.back().after = trimmed(code.substr(begin));
}

}  // namespace

std::vector<JinjaLiteral> jinja_literals(std::string_view jinja) {
  std::vector<JinjaLiteral> literals;
  while (!jinja.empty()) {
    size_t tag = 0;
    while (tag < jinja.size() && !is_tag(jinja.substr(tag))) ++tag;
    if (tag > 0) literals.push_back({std::string(jinja.substr(0, tag)), {}, {}});
    jinja.remove_prefix(tag);
    if (jinja.empty()) break;
    if (jinja[1] == '#') {
      const size_t end = jinja.find("#}");
      jinja.remove_prefix(end == std::string_view::npos ? jinja.size() : end + 2);
      continue;
    }
    const auto length = tag_length(jinja, jinja[1] == '{' ? "}}" : "%}");
    if (!length) break;
    read_tag(jinja.substr(2, *length - 4), literals);
    jinja.remove_prefix(*length);
  }
  return literals;
}

}  // namespace kveval
