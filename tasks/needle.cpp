#include "tasks/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/hash.h"
#include "engine/random.h"
#include "tasks/framing.h"
#include "tasks/haystack.h"
#include "tasks/identity.h"
#include "tasks/wordbank.h"

namespace kveval {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;
constexpr int kMaxNeedles = 64;
constexpr int kAnswerTokens = 16;

constexpr std::string_view kInstruction =
    "Secret access codes of some names are hidden in the text below. "
    "Read the text, then answer the question.\n\n";

// Nine words and marks: a model that looks back eight tokens from the value sees the frame and both key
// words.
std::string answer_prefix(std::string_view name) {
  return fmt::format("The secret access code for {} is:", name);
}

struct Parameters {
  int needles = 4;
  std::vector<TextFile> haystack;  // the user's text; empty: generated
};

struct Needle {
  std::string adjective, noun;
  std::string value;  // six digits
  double jitter = 0;  // where in its stratum, [0, 1)
  Tokens target;      // the value as it follows the answer prefix

  std::string name() const { return adjective + ' ' + noun; }
  std::string sentence() const { return fmt::format("{} {}.", answer_prefix(name()), value); }
  Asked asked() const {
    return {.question = fmt::format(
                "\n\nWhat is the secret access code for {}? Answer with the digits alone.", name()),
            .answer = answer_prefix(name())};
  }
  Asked answered() const {
    Asked all = asked();
    all.answer += ' ' + value;
    return all;
  }
};

[[noreturn]] void refuse(const std::string& message, std::string hint = {}) {
  throw Error(ErrorKind::usage, "niah: " + message, std::move(hint));
}

TextFile parse_text_file(const json& item) {
  if (item.is_string()) return identify(item.get<std::string>());
  if (item.is_object() && item.size() == 2 && item.contains("path") && item.contains("xxh3") &&
      item["path"].is_string() && item["xxh3"].is_string())
    return {.path = item["path"].get<std::string>(), .hash = item["xxh3"].get<std::string>()};
  refuse("'haystack' holds something that is neither a path nor {\"path\", \"xxh3\"}");
}

Parameters parse_parameters(const json& given) {
  if (!given.is_object()) refuse("the parameters are not a JSON object");
  Parameters parameters;
  for (const auto& [name, value] : given.items()) {
    if (name == "needles") {
      if (!value.is_number_integer() || value < 1 || value > kMaxNeedles)
        refuse(
            fmt::format("'needles' is {}, which is no whole number from 1 to {}", value.dump(), kMaxNeedles));
      parameters.needles = value.get<int>();
    } else if (name == "haystack") {
      if (!value.is_array()) refuse("'haystack' is not a list of paths");
      for (const json& item : value) parameters.haystack.push_back(parse_text_file(item));
    } else {
      refuse(fmt::format("there is no parameter '{}'", name), "Parameters: needles, haystack.");
    }
  }
  return parameters;
}

// Canonical: members sorted, defaults written out. With paths it repeats a run, without them it names its
// samples.
std::string to_json(const Parameters& parameters, bool with_paths) {
  json files = json::array();
  for (const TextFile& file : parameters.haystack)
    files.push_back(with_paths ? json{{"path", file.path}, {"xxh3", file.hash}} : json(file.hash));
  return json{{"needles", parameters.needles}, {"haystack", files}}.dump();
}

// `count` different words that the hay does not hold.
std::vector<std::string> draw_words(std::span<const std::string_view> bank, int count, Random& random,
                                    const WordCounts& taken) {
  std::vector<std::string> free;
  for (const std::string_view word : bank)
    if (!taken.contains(std::string(word))) free.emplace_back(word);
  if (free.size() < size_t(count))
    refuse(fmt::format("the haystack text leaves only {} words for {} needles", free.size(), count),
           "Use fewer needles or another text.");
  for (size_t i = 0; i < size_t(count); ++i) std::swap(free[i], free[i + random.below(free.size() - i)]);
  free.resize(size_t(count));
  return free;
}

std::vector<Needle> draw_needles(const GroupIdentity& group, int count, const WordCounts& taken) {
  Random words(sub_seed(group, "words")), values(sub_seed(group, "values")),
      depths(sub_seed(group, "depths"));
  std::vector<std::string> adjectives = draw_words(key_adjectives(), count, words, taken);
  std::vector<std::string> nouns = draw_words(key_nouns(), count, words, taken);
  std::set<std::string> used;
  std::vector<Needle> needles(static_cast<size_t>(count));
  for (size_t i = 0; i < needles.size(); ++i) {
    Needle& needle = needles[i];
    needle.adjective = std::move(adjectives[i]);
    needle.noun = std::move(nouns[i]);
    do needle.value = std::to_string(100000 + values.below(900000));
    while (!used.insert(needle.value).second);
    needle.jitter = depths.uniform();
  }
  return needles;
}

// What `longer` has beyond `tokens`.
Tokens continuation(const Tokens& tokens, const Tokens& longer, std::string_view added) {
  if (longer.size() <= tokens.size() || !std::equal(tokens.begin(), tokens.end(), longer.begin()))
    throw Error(
        ErrorKind::run,
        fmt::format("niah: the tokenizer merges '{}' into the words before it, so it cannot be asked for",
                    added));
  return {longer.begin() + std::ptrdiff_t(tokens.size()), longer.end()};
}

// Finds every needle's target, behind a text as short as can be, and returns the most tokens that a question
// takes there.
size_t tokenize_targets(std::vector<Needle>& needles, const Framing& framing) {
  const std::string_view text = kInstruction.substr(0, kInstruction.size() - 2);
  const size_t before = prefix_tokens(framing, text).size();
  size_t longest = 0;
  for (Needle& needle : needles) {
    const Tokens prompt = prompt_tokens(framing, text, needle.asked());
    longest = std::max(longest, prompt.size() - std::min(before, prompt.size()));
    needle.target = continuation(prompt, prompt_tokens(framing, text, needle.answered()), needle.value);
    if (needle.target.size() > size_t(kAnswerTokens))
      throw Error(ErrorKind::run, fmt::format("niah: '{}' is {} tokens, more than the {} an answer may have",
                                              needle.value, needle.target.size(), kAnswerTokens));
  }
  for (const Needle& a : needles)
    for (const Needle& b : needles)
      if (&a != &b && a.target.size() <= b.target.size() &&
          std::equal(a.target.begin(), a.target.end(), b.target.begin()))
        throw Error(ErrorKind::run,
                    fmt::format("niah: '{}' begins '{}' in this tokenizer", a.value, b.value));
  return longest;
}

std::string_view trailing_space(std::string_view text) {
  return text.substr(std::min(text.find_last_not_of(" \t\n\v\f\r") + 1, text.size()));
}

int64_t count_tokens(std::string_view text, const Tokenizer& tokenizer) {
  return int64_t(tokenizer.encode(text).size());
}

std::string assemble(const std::vector<std::string>& pieces, size_t count,
                     const std::vector<Needle>& needles) {
  std::string text(kInstruction);
  size_t next = 0;  // the needle to place
  for (size_t i = 0; i < count; ++i) {
    // Needle s stands before one of the pieces of stratum s: [s, s + 1) * count / needles.
    while (next < needles.size()) {
      const size_t begin = next * count / needles.size(), end = (next + 1) * count / needles.size();
      if (i != begin + size_t(needles[next].jitter * double(end - begin))) break;
      if (trailing_space(text).empty()) text += ' ';
      text += needles[next++].sentence() + ' ';
    }
    text += pieces[i];
  }
  text.resize(text.size() - trailing_space(text).size());
  return text;
}

struct Prefix {
  std::string text;  // without the template's words
  Tokens tokens;
};

// Pieces as far as they have been needed, with the tokens they are likely to take.
class Hay {
 public:
  Hay(PieceSource next, const Tokenizer& tokenizer) : next_(std::move(next)), tokenizer_(tokenizer) {}

  const std::vector<std::string>& pieces(size_t count) {
    while (pieces_.size() < count) add();
    return pieces_;
  }
  int64_t tokens(size_t count) {  // of the first `count` pieces
    pieces(count);
    return sums_[count];
  }
  size_t pieces_within(int64_t tokens) {  // the most that take no more
    while (sums_.back() <= tokens) add();
    const auto beyond = std::upper_bound(sums_.begin(), sums_.end(), tokens);
    return beyond == sums_.begin() ? 0 : size_t(beyond - sums_.begin()) - 1;
  }

 private:
  void add() {
    // A word's space belongs to its token: count the white space behind the last piece with this one.
    const std::string_view before = pieces_.empty() ? std::string_view() : trailing_space(pieces_.back());
    std::string piece = next_();
    const std::string_view words =
        std::string_view(piece).substr(0, piece.size() - trailing_space(piece).size());
    sums_.push_back(sums_.back() + count_tokens(fmt::format("{}{}", before, words), tokenizer_));
    pieces_.push_back(std::move(piece));
  }

  PieceSource next_;
  const Tokenizer& tokenizer_;
  std::vector<std::string> pieces_;
  std::vector<int64_t> sums_ = {0};
};

// The longest prefix of at most length - reserved tokens, one more piece being too many. The pieces' lone
// token counts foretell the whole almost exactly, so it is tokenized once or twice.
Prefix fit(Hay& hay, const std::vector<Needle>& needles, const Framing& framing, const GroupSpec& spec,
           size_t reserved) {
  const int64_t budget = int64_t(spec.length) - int64_t(reserved);
  int64_t fixed = int64_t(prefix_tokens(framing, kInstruction).size());
  for (const Needle& needle : needles)
    fixed += count_tokens(fmt::format(" {}", needle.sentence()), framing.tokenizer);

  const size_t fewest = needles.size();  // a piece for every stratum
  size_t too_many = SIZE_MAX, enough = 0;
  Prefix best;  // of `enough` pieces
  size_t count = std::max(fewest, hay.pieces_within(budget - fixed));
  while (true) {
    Prefix prefix{.text = assemble(hay.pieces(count), count, needles), .tokens = {}};
    prefix.tokens = prefix_tokens(framing, prefix.text);
    const int64_t room = budget - int64_t(prefix.tokens.size());
    if (room < 0) {
      if (count == fewest)
        refuse(fmt::format("a length of {} tokens cannot hold {} needles, a question and its answer",
                           spec.length, needles.size()),
               fmt::format("Haystack {} needs at least {} tokens.", spec.haystack,
                           prefix.tokens.size() + reserved));
      too_many = count;
    } else {
      enough = count;
      best = std::move(prefix);
      if (room < hay.tokens(count + 1) - hay.tokens(count)) return best;
    }
    if (enough + 1 == too_many) return best;
    // Where the estimate sees the end from here, strictly between what is known.
    count =
        std::clamp(hay.pieces_within(hay.tokens(count) + room), std::max(fewest, enough + 1), too_many - 1);
  }
}

std::vector<size_t> occurrences(const Tokens& tokens, const Tokens& pattern) {
  std::vector<size_t> found;
  for (auto at = tokens.begin();; ++at) {
    at = std::search(at, tokens.end(), pattern.begin(), pattern.end());
    if (at == tokens.end()) return found;
    found.push_back(size_t(at - tokens.begin()));
  }
}

// Where the needle's value begins in the prefix. The tokens before the value must be the same in the needle
// and in the question, and there must be one such place; otherwise the sample has no known answer.
size_t locate(const Needle& needle, const Tokens& question, const Tokens& prefix,
              const Tokenizer& tokenizer) {
  // From the second token of the answer prefix on: what the first one merges with differs between the two.
  const size_t frame = tokenizer.encode(answer_prefix(needle.name())).size() - 1;
  Tokens pattern(question.end() - std::ptrdiff_t(std::min(frame, question.size())), question.end());
  const size_t value = pattern.size();
  pattern.insert(pattern.end(), needle.target.begin(), needle.target.end());
  const std::vector<size_t> found = occurrences(prefix, pattern);
  if (found.size() != 1)
    throw Error(ErrorKind::run,
                fmt::format("niah: the needle '{}' stands {} times in the haystack's tokens instead of once",
                            needle.sentence(), found.size()));
  return found[0] + value;
}

struct Prompts {
  Prefix prefix;
  std::vector<Tokens> questions;  // by needle
};

// Tokenized with their answers, which are taken off again: these must be the targets.
Prompts tokenize_prompts(Prefix prefix, const std::vector<Needle>& needles, const Framing& framing) {
  std::vector<Asked> answered;
  answered.reserve(needles.size());
  for (const Needle& needle : needles) answered.push_back(needle.answered());
  Prompts prompts{.prefix = std::move(prefix), .questions = {}};
  prompts.questions = cut_branches(framing, prompts.prefix.text, answered, prompts.prefix.tokens);
  for (size_t i = 0; i < needles.size(); ++i) {
    Tokens& question = prompts.questions[i];
    const Tokens& target = needles[i].target;
    if (question.size() < target.size() || !std::equal(target.rbegin(), target.rend(), question.rbegin()))
      throw Error(ErrorKind::run,
                  fmt::format("niah: '{}' has other tokens behind a longer text", needles[i].value));
    question.resize(question.size() - target.size());
  }
  return prompts;
}

size_t longest_of(const std::vector<Tokens>& questions) {
  size_t longest = 0;
  for (const Tokens& question : questions) longest = std::max(longest, question.size());
  return longest;
}

// As much hay as the length holds with the longest question and its answer.
Prompts fill(PieceSource source, std::vector<Needle>& needles, const Framing& framing,
             const GroupSpec& spec) {
  Hay hay(std::move(source), framing.tokenizer);
  size_t reserved = tokenize_targets(needles, framing) + size_t(kAnswerTokens);
  for (;;) {
    Prompts prompts = tokenize_prompts(fit(hay, needles, framing, spec, reserved), needles, framing);
    const size_t used = prompts.prefix.tokens.size() + longest_of(prompts.questions) + size_t(kAnswerTokens);
    if (used <= size_t(spec.length)) return prompts;
    reserved += used - size_t(spec.length);  // behind this text a question takes more than behind a short one
  }
}

void check_key_words(const std::vector<Needle>& needles, std::string_view text) {
  const WordCounts counts = count_words(text);
  for (const Needle& needle : needles)
    for (const std::string& word : {needle.adjective, needle.noun})
      if (const auto found = counts.find(word); found == counts.end() || found->second != 1)
        throw Error(ErrorKind::run,
                    fmt::format("niah: the key word '{}' does not stand exactly once in the haystack", word));
}

SampleGroup make_group(const GroupSpec& spec, const Framing& framing) {
  const Parameters parameters = parse_parameters(json::parse(spec.parameters));
  const std::string identity_parameters = to_json(parameters, false);
  const GroupIdentity identity{.task = "niah",
                               .version = kVersion,
                               .parameters = identity_parameters,
                               .seed = spec.seed,
                               .length = spec.length,
                               .haystack = spec.haystack};

  const std::string hay = parameters.haystack.empty() ? std::string() : read_hay(parameters.haystack);
  std::vector<Needle> needles = draw_needles(identity, parameters.needles, count_words(hay));
  const uint64_t seed = sub_seed(identity, "filler");
  PieceSource source = hay.empty() ? generated_hay(seed) : repeated_hay(split_hay(hay), seed);
  Prompts prompts = fill(std::move(source), needles, framing, spec);
  Prefix& prefix = prompts.prefix;
  check_key_words(needles, prefix.text);

  SampleGroup group{.task = "niah",
                    .task_version = kVersion,
                    .length = spec.length,
                    .haystack = spec.haystack,
                    .prefix = {},
                    .prefix_text = prefix_text(framing, prefix.text),
                    .samples = {},
                    .prefix_sha = hash_hex(prefix.tokens),
                    .stop_tokens = stop_tokens(framing)};
  for (size_t i = 0; i < needles.size(); ++i) {
    Needle& needle = needles[i];
    Tokens& question = prompts.questions[i];
    Sample sample;
    sample.item_key = item_key(identity, int(i));
    sample.prompt_sha = prompt_sha(group.prefix_sha, question, needle.target);
    sample.index = int(i);
    sample.stratum = int(i);
    sample.depth =
        double(locate(needle, question, prefix.tokens, framing.tokenizer)) / double(prefix.tokens.size());
    sample.question = branch_text(framing, needle.asked());
    sample.expected = needle.value;
    sample.question_tokens = std::move(question);
    sample.target = std::move(needle.target);
    group.samples.push_back(std::move(sample));
  }
  group.prefix = std::move(prefix.tokens);
  return group;
}

}  // namespace

Task niah_task() {
  return {
      .name = "niah",
      .version = kVersion,
      .summary = "needles in a haystack: secret codes of names, hidden at even depths, asked for one by one",
      .primary = Scorer::strict,
      .max_answer_tokens = kAnswerTokens,
      .stop_strings = {"\n", "."},
      .make_group = make_group,
      .resolve_parameters = [](const json& given) { return to_json(parse_parameters(given), true); }};
}

}  // namespace kveval
