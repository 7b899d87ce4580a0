#define PCRE2_CODE_UNIT_WIDTH 8
#include "engine/text/pre_tokenizer.h"

#include <fmt/format.h>
#include <pcre2.h>

#include <cstdint>

#include "engine/error.h"
#include "engine/quote.h"

namespace kveval {
namespace {

constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<PreTokenizerDefinition>& definitions() {
  static const std::vector<PreTokenizerDefinition> kDefinitions = {
      {.name = "gpt-2", .aliases = {}, .patterns = {kGpt2}},
      {.name = "smollm", .aliases = {}, .patterns = {R"(\p{N})", kGpt2}},
      {.name = "llama-bpe",
       .aliases = {"llama3", "llama-v3"},
       .patterns = {kLlama3},
       .ignore_merges = true,
       .add_bos = true},
      {.name = "qwen2", .aliases = {}, .patterns = {kQwen2}, .nfc = true},
  };
  return kDefinitions;
}

// Unicode's White_Space, which \s means to the tokenizers these patterns come from. PCRE2's \s also has
// U+180E.
constexpr std::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string spell_out_white_space(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\') {
      if (c == '[' || c == ']') in_class = c == '[';
      out += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's' && in_class)
      out += kWhiteSpace;
    else if (escaped == 's' || escaped == 'S')
      out += fmt::format("[{}{}]", escaped == 's' ? "" : "^", kWhiteSpace);
    else
      (out += '\\') += escaped;
  }
  return out;
}

struct FreeMatch {
  void operator()(pcre2_match_data* match) const { pcre2_match_data_free(match); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

// What a match writes to; one for each thread.
struct Matcher {
  std::unique_ptr<pcre2_match_data, FreeMatch> match{pcre2_match_data_create(1, nullptr)};
  std::unique_ptr<pcre2_match_context, FreeContext> context{pcre2_match_context_create(nullptr)};

  Matcher() {
    if (!match || !context) throw Error(ErrorKind::run, "out of memory for a pattern's match");
    // Without JIT each step back inside a run of spaces counts, and runs may be as long as the text.
    pcre2_set_match_limit(context.get(), UINT32_MAX);
  }
};

}  // namespace

struct PreTokenizer::Pattern {
  explicit Pattern(std::string_view text) {
    const std::string spelled = spell_out_white_space(text);
    int error = 0;
    size_t offset = 0;
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(), PCRE2_UTF | PCRE2_UCP,
                         &error, &offset, nullptr);
    if (!code)
      throw Error(ErrorKind::run, fmt::format("PCRE2 refuses a pre-tokenizer's pattern (error {} at {}): {}",
                                              error, offset, spelled));
    // Where there is no JIT, matching is slower and the same.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
  }
  ~Pattern() { pcre2_code_free(code); }
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;

  void isolate(std::string_view text, const Matcher& matcher, std::vector<std::string_view>& pieces) const {
    size_t at = 0;
    while (at < text.size()) {
      const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                                    PCRE2_NO_UTF_CHECK, matcher.match.get(), matcher.context.get());
      if (found == PCRE2_ERROR_NOMATCH) break;
      if (found < 0)
        throw Error(ErrorKind::run,
                    fmt::format("PCRE2 cannot cut a text of {} bytes (error {})", text.size(), found));
      const size_t* const bounds = pcre2_get_ovector_pointer(matcher.match.get());
      if (bounds[0] > at) pieces.push_back(text.substr(at, bounds[0] - at));
      pieces.push_back(text.substr(bounds[0], bounds[1] - bounds[0]));
      at = bounds[1];
    }
    if (at < text.size()) pieces.push_back(text.substr(at));
  }

  pcre2_code* code = nullptr;
};

const PreTokenizerDefinition& pre_tokenizer_named(std::string_view name) {
  std::string known;
  for (const PreTokenizerDefinition& definition : definitions()) {
    if (definition.name == name) return definition;
    for (const std::string_view alias : definition.aliases)
      if (alias == name) return definition;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", definition.name);
  }
  throw Error(ErrorKind::bad_file, fmt::format("the pre-tokenizer {} is unknown", quote(name)),
              "kveval knows " + known + ".");
}

const PreTokenizerDefinition* pre_tokenizer_with_pattern(std::string_view pattern) {
  for (const PreTokenizerDefinition& definition : definitions())
    if (definition.patterns.size() == 1 && definition.patterns[0] == pattern) return &definition;
  return nullptr;
}

PreTokenizer::PreTokenizer(const PreTokenizerDefinition& definition) {
  for (const std::string_view pattern : definition.patterns)
    patterns_.push_back(std::make_unique<const Pattern>(pattern));
}

PreTokenizer::~PreTokenizer() = default;

std::vector<std::string_view> PreTokenizer::split(std::string_view text) const {
  const Matcher matcher;
  std::vector<std::string_view> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const auto& pattern : patterns_) {
    std::vector<std::string_view> finer;
    for (const std::string_view piece : pieces) pattern->isolate(piece, matcher, finer);
    pieces = std::move(finer);
  }
  return pieces;
}

}  // namespace kveval
