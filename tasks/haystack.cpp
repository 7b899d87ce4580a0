#include "tasks/haystack.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/random.h"
#include "tasks/wordbank.h"

namespace kveval {
namespace {

constexpr size_t kLargestFile = size_t{256} << 20;
constexpr size_t kLongestPiece = 400;  // bytes: about 100 tokens, what a fit may leave unused

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }
bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
bool is_lower(char c) { return c >= 'a' && c <= 'z'; }

std::string fill(std::string_view text, Random& random) {
  std::string sentence;
  for (size_t open; (open = text.find('{')) != std::string_view::npos;) {
    const size_t close = text.find('}', open);
    const auto words = filler_words(text.substr(open + 1, close - open - 1));
    const std::string_view word = words[random.below(words.size())];
    sentence += text.substr(0, open);
    if ((sentence.ends_with(" a ") || sentence == "A ") && is_one_of(word[0], "aeio"))
      sentence.insert(sentence.size() - 1, 1, 'n');
    sentence += word;
    text.remove_prefix(close + 1);
  }
  return sentence += text;
}

// Offset of the first byte that is not part of well-formed UTF-8 (no overlong forms, surrogates or values
// beyond U+10FFFF).
std::optional<size_t> invalid_utf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead < 0x80) {
      ++i;
      continue;
    }
    const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4 || text.size() - i < length) return i;
    const auto second = static_cast<unsigned char>(text[i + 1]);
    if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second > 0x9F) ||
        (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second > 0x8F))
      return i;
    for (size_t k = 1; k < length; ++k)
      if (!is_continuation(text[i + k])) return i;
    i += length;
  }
  return std::nullopt;
}

std::string read_file(const std::string& path) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorKind::bad_file, fmt::format("the haystack file '{}' {}", path, why),
                "Give a text file in UTF-8.");
  };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  std::string content;
  char buffer[1 << 16];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, file.get())) > 0;) {
    content.append(buffer, n);
    if (content.size() > kLargestFile) refuse("is larger than 256 MiB");
  }
  if (std::ferror(file.get())) refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  return content;
}

// Where the piece that starts at `begin` ends, before its trailing white space.
size_t end_of_sentence(std::string_view text, size_t begin) {
  size_t last_space = begin;  // of the last white space seen, to fall back on
  for (size_t i = begin; i < text.size(); ++i) {
    if (i - begin >= kLongestPiece) {
      if (last_space > begin) return last_space;
      while (i > begin + 1 && is_continuation(text[i])) --i;
      return i;
    }
    if (!is_space(text[i])) continue;
    last_space = i;
    if (text[i] == '\n') return i;
    size_t mark = i;  // look behind closing quotes and brackets
    while (mark > begin && is_one_of(text[mark - 1], "\"')]")) --mark;
    if (mark > begin && is_one_of(text[mark - 1], ".!?")) return i;
  }
  return text.size();
}

}  // namespace

PieceSource generated_hay(uint64_t seed) {
  struct State {
    Random random;
    uint64_t left_in_paragraph = 0;
    size_t last_template = 0;
  };
  const auto state = std::make_shared<State>(State{.random = Random(seed)});
  return [state] {
    Random& random = state->random;
    if (state->left_in_paragraph == 0) state->left_in_paragraph = 5 + random.below(6);
    // Never the same template twice in a row: draw among the others.
    const auto templates = filler_templates();
    state->last_template = (state->last_template + 1 + random.below(templates.size() - 1)) % templates.size();
    std::string sentence = fill(templates[state->last_template], random);
    return sentence += --state->left_in_paragraph == 0 ? "\n\n" : " ";
  };
}

TextFile identify(const std::string& path) {
  if (invalid_utf8(path))  // it could not be stored with the run
    throw Error(ErrorKind::bad_file, fmt::format("the name of the haystack file '{}' is not UTF-8", path),
                "Rename the file.");
  return {.path = path, .hash = hash_hex(read_file(path))};
}

std::string read_hay(const std::vector<TextFile>& files) {
  std::string hay;
  for (const TextFile& file : files) {
    const std::string content = read_file(file.path);
    if (hash_hex(content) != file.hash)
      throw Error(ErrorKind::bad_file,
                  fmt::format("the haystack file '{}' is not the one the suite was resolved with", file.path),
                  "Restore the file, or start a new run with the changed one.");
    if (const auto offset = invalid_utf8(content))
      throw Error(ErrorKind::bad_file,
                  fmt::format("the haystack file '{}' is not UTF-8 at byte {}", file.path, *offset),
                  "Convert it, for instance with iconv.");
    std::string_view text = content;
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    hay += text;
    if (!hay.empty() && hay.back() != '\n') hay += '\n';
  }
  hay.erase(hay.begin(), std::find_if_not(hay.begin(), hay.end(), is_space));
  if (hay.empty())
    throw Error(ErrorKind::bad_file, fmt::format("the haystack file '{}' holds no text", files.front().path),
                "Give a file with at least one sentence.");
  return hay;
}

std::vector<std::string> split_hay(std::string_view text) {
  std::vector<std::string> pieces;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t end = end_of_sentence(text, begin);
    while (end < text.size() && is_space(text[end]) && end - begin < 2 * kLongestPiece) ++end;
    pieces.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return pieces;
}

PieceSource repeated_hay(std::vector<std::string> pieces, uint64_t seed) {
  struct State {
    std::vector<std::string> pieces;
    size_t next;
  };
  const size_t start = Random(seed).below(pieces.size());
  const auto state = std::make_shared<State>(State{std::move(pieces), start});
  return [state] {
    const size_t at = state->next;
    state->next = (at + 1) % state->pieces.size();
    return state->pieces[at];
  };
}

WordCounts count_words(std::string_view text) {
  WordCounts counts;
  std::string word;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ' ';
    if (is_lower(c) || is_upper(c)) {
      word += is_upper(c) ? char(c - 'A' + 'a') : c;
    } else if (!word.empty()) {
      ++counts[word];
      word.clear();
    }
  }
  return counts;
}

}  // namespace kveval
