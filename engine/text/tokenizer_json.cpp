#include "engine/text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include "engine/error.h"
#include "engine/quote.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/tokenizer_json_parser.h"
#include "engine/text/utf8.h"

namespace kveval {
namespace {

using nlohmann::json;

constexpr std::string_view kKnown =
    "kveval knows byte-level BPE with the patterns of GPT-2, SmolLM, Llama 3 and Qwen2, and SentencePiece's "
    "BPE with byte fallback.";

Error bad(const std::string& what) { return Error(ErrorKind::bad_file, "tokenizer.json: " + what); }
Error unknown(const std::string& what) {
  return Error(ErrorKind::bad_file, "tokenizer.json: " + what, std::string(kKnown));
}

const json& member(const json& object, const char* name) {
  static const json kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string text_member(const json& object, const char* name, std::string_view where) {
  const json& value = member(object, name);
  if (!value.is_string()) throw bad(fmt::format("{} has no text '{}'", where, name));
  return value.get<std::string>();
}

bool flag_member(const json& object, const char* name, bool when_absent, std::string_view where) {
  const json& value = member(object, name);
  if (value.is_null()) return when_absent;
  if (!value.is_boolean()) throw bad(fmt::format("'{}' of {} is neither true nor false", name, where));
  return value.get<bool>();
}

Token id_member(const json& object, const char* name, std::string_view where) {
  const json& value = member(object, name);
  if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxPieces)
    throw bad(fmt::format("'{}' of {} is no token id", name, where));
  return value.get<Token>();
}

// Options that nobody here reads would change the ids unnoticed.
void allow_only(const json& object, std::string_view where, std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : object.items())
    if (std::ranges::find(names, name) == names.end())
      throw unknown(fmt::format("{} has an unknown option {}", where, quote(name)));
}

// Null is nothing, a Sequence its elements in order, anything else itself.
std::vector<const json*> steps_of(const json& part, std::string_view where, const char* list) {
  if (part.is_null()) return {};
  if (!part.is_object()) throw bad(fmt::format("the {} is no object", where));
  if (text_member(part, "type", where) != "Sequence") return {&part};
  allow_only(part, where, {"type", list});
  std::vector<const json*> steps;
  const json& elements = member(part, list);
  if (!elements.is_array()) throw bad(fmt::format("the sequence of the {} is no list", where));
  for (const json& element : elements)
    for (const json* step : steps_of(element, where, list)) steps.push_back(step);
  return steps;
}

Error unknown_step(std::string_view where, const json& step) {
  return unknown(fmt::format("the {} {} is unknown", where, quote(text_member(step, "type", where))));
}

bool is_pattern(const json& step, const char* kind, std::string_view text) {
  const json& pattern = member(step, "pattern");
  return pattern.is_object() && pattern.size() == 1 && member(pattern, kind) == text;
}

struct Normalizer {
  bool nfc = false;
  bool marks_spaces = false;
  bool prepends_mark = false;
};

Normalizer read_normalizer(const json& part) {
  Normalizer normalizer;
  for (const json* step : steps_of(part, "normalizer", "normalizers")) {
    const std::string type = text_member(*step, "type", "normalizer");
    if (type == "NFC")
      normalizer.nfc = true;
    else if (type == "Replace" && is_pattern(*step, "String", " ") && member(*step, "content") == kSpaceMark)
      normalizer.marks_spaces = true;
    else if (type == "Prepend" && member(*step, "prepend") == kSpaceMark)
      normalizer.prepends_mark = true;
    else
      throw unknown_step("normalizer", *step);
  }
  return normalizer;
}

// The pattern of the one ByteLevel step, when that is what the pre-tokenizer is.
bool byte_level_has_pattern(const json& step) {
  allow_only(step, "the pre-tokenizer ByteLevel", {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (flag_member(step, "add_prefix_space", true, "ByteLevel"))
    throw unknown("the pre-tokenizer ByteLevel adds a space before a text");
  return flag_member(step, "use_regex", true, "ByteLevel");
}

std::string read_byte_level_pre_tokenizer(const std::vector<const json*>& steps) {
  if (steps.size() > 2) throw unknown(fmt::format("the pre-tokenizer has {} steps", steps.size()));
  const bool has_pattern = byte_level_has_pattern(*steps.back());
  if (steps.size() == 1) {
    if (!has_pattern) throw unknown("the pre-tokenizer ByteLevel has no pattern");
    return "gpt-2";
  }
  const json& first = *steps.front();
  const std::string type = text_member(first, "type", "pre-tokenizer");
  if (type == "Digits" && has_pattern && flag_member(first, "individual_digits", false, "Digits"))
    return "smollm";
  if (type != "Split" || has_pattern) throw unknown_step("pre-tokenizer", first);
  if (member(first, "behavior") != "Isolated" || flag_member(first, "invert", false, "Split"))
    throw unknown("the pre-tokenizer Split does not isolate its matches");
  const json& pattern = member(first, "pattern");
  const std::string text =
      pattern.is_object() ? text_member(pattern, "Regex", "the pre-tokenizer Split") : "";
  const PreTokenizerDefinition* const definition = pre_tokenizer_with_pattern(text);
  if (!definition) throw unknown(fmt::format("the pre-tokenizer's pattern {} is unknown", quote(text)));
  return std::string(definition->name);
}

SpacePrefix read_sentencepiece_prefix(const Normalizer& normalizer, const std::vector<const json*>& steps) {
  if (steps.size() > 1) throw unknown(fmt::format("the pre-tokenizer has {} steps", steps.size()));
  if (steps.empty() || text_member(*steps[0], "type", "pre-tokenizer") == "Split") {
    // Nothing is left to split at once spaces are marks.
    if (!steps.empty() && !is_pattern(*steps[0], "String", " "))
      throw unknown_step("pre-tokenizer", *steps[0]);
    if (!normalizer.marks_spaces) throw unknown("there is no normalizer that marks spaces");
    return normalizer.prepends_mark ? SpacePrefix::every_text : SpacePrefix::none;
  }
  const json& step = *steps[0];
  if (text_member(step, "type", "pre-tokenizer") != "Metaspace") throw unknown_step("pre-tokenizer", step);
  allow_only(step, "the pre-tokenizer Metaspace",
             {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"});
  if (member(step, "replacement") != kSpaceMark || flag_member(step, "split", true, "Metaspace"))
    throw unknown("the pre-tokenizer Metaspace splits at spaces or has another mark");
  if (normalizer.marks_spaces || normalizer.prepends_mark)
    throw unknown("both the normalizer and the pre-tokenizer mark spaces");
  const std::string scheme = text_member(step, "prepend_scheme", "Metaspace");
  if (scheme == "never") return SpacePrefix::none;
  if (scheme == "first") return SpacePrefix::first_bare_text;
  if (scheme == "always") return SpacePrefix::every_bare_text;
  throw unknown(fmt::format("the pre-tokenizer Metaspace has an unknown scheme {}", quote(scheme)));
}

void check_byte_level_decoder(const json& part) {
  const auto steps = steps_of(part, "decoder", "decoders");
  if (steps.empty()) throw unknown("there is no decoder");
  for (const json* step : steps)
    if (text_member(*step, "type", "decoder") != "ByteLevel") throw unknown_step("decoder", *step);
}

void check_sentencepiece_decoder(const json& part, bool has_prefix) {
  bool marks = false, bytes = false, strips = false;
  for (const json* step : steps_of(part, "decoder", "decoders")) {
    const std::string type = text_member(*step, "type", "decoder");
    if (type == "Replace" && is_pattern(*step, "String", kSpaceMark) && member(*step, "content") == " ")
      marks = true;
    else if (type == "ByteFallback")
      bytes = true;
    else if (type == "Strip" && member(*step, "content") == " " && member(*step, "start") == 1 &&
             member(*step, "stop") == 0)
      strips = true;
    else if (type != "Fuse")
      throw unknown_step("decoder", *step);
  }
  if (!marks || !bytes || strips != has_prefix) throw unknown("the decoder does not undo what encoding does");
}

// What is put before a text: nothing, or the BOS token.
void read_post_processor(const json& part, Vocabulary& vocabulary) {
  vocabulary.add_bos = false;
  for (const json* step : steps_of(part, "post-processor", "processors")) {
    const std::string type = text_member(*step, "type", "post-processor");
    if (type == "ByteLevel") continue;
    if (type != "TemplateProcessing") throw unknown_step("post-processor", *step);
    const json& single = member(*step, "single");
    const bool is_list = single.is_array() && !single.empty() && single.back().is_object() &&
                         single.back().contains("Sequence");
    if (!is_list || single.size() > 2) throw unknown("the post-processor adds more than a BOS token");
    if (single.size() == 1) continue;
    const json& special = single[0].is_object() ? member(single[0], "SpecialToken") : single[0];
    if (!special.is_object()) throw unknown("the post-processor adds more than a BOS token");
    const std::string name = text_member(special, "id", "post-processor");
    vocabulary.bos = find_piece(vocabulary, name);
    if (!vocabulary.bos) throw bad(fmt::format("the post-processor adds {}, which is no piece", quote(name)));
    vocabulary.add_bos = true;
  }
}

struct AddedToken {
  Token id;
  std::string text;
  bool special;
};

std::vector<AddedToken> read_added_tokens(const json& list) {
  std::vector<AddedToken> added;
  if (list.is_null()) return added;
  if (!list.is_array()) throw bad("'added_tokens' is no list");
  for (const json& token : list) {
    if (!token.is_object()) throw bad("an added token is no object");
    added.push_back({.id = id_member(token, "id", "an added token"),
                     .text = text_member(token, "content", "an added token"),
                     .special = flag_member(token, "special", false, "an added token")});
    for (const char* option : {"single_word", "lstrip", "rstrip"})
      if (flag_member(token, option, false, "an added token"))
        throw unknown(fmt::format("the added token {} has the option {}", quote(added.back().text), option));
  }
  return added;
}

// Pieces by id, and their kinds. Added tokens may be among the model's pieces, fill gaps between them or
// follow them.
void place_pieces(std::vector<ModelTables::Piece> pieces, const std::vector<AddedToken>& added,
                  Vocabulary& vocabulary) {
  const auto id_of = &ModelTables::Piece::id;
  std::ranges::sort(pieces, {}, id_of);
  if (const auto twice = std::ranges::adjacent_find(pieces, {}, id_of); twice != pieces.end())
    throw bad(fmt::format("{} and {} have the same id, {}", quote(twice->text), quote((twice + 1)->text),
                          twice->id));
  for (const AddedToken& token : added) pieces.push_back({token.id, token.text});
  std::ranges::stable_sort(pieces, {}, id_of);
  for (ModelTables::Piece& piece : pieces) {
    const size_t next = vocabulary.pieces.size();
    if (size_t(piece.id) == next)
      vocabulary.pieces.push_back(std::move(piece.text));
    else if (size_t(piece.id) > next)
      throw bad(fmt::format("no piece has the id {}, though {} has {}", next, quote(piece.text), piece.id));
    else if (vocabulary.pieces.back() != piece.text)
      throw bad(fmt::format("{} and {} have the same id, {}", quote(vocabulary.pieces.back()),
                            quote(piece.text), piece.id));
  }
  vocabulary.kinds.assign(vocabulary.pieces.size(), PieceKind::normal);
  for (const AddedToken& token : added)
    vocabulary.kinds[size_t(token.id)] = token.special ? PieceKind::control : PieceKind::user_defined;
}

std::optional<Token> unknown_token(const json& model, const Vocabulary& vocabulary) {
  if (member(model, "unk_token").is_null()) return std::nullopt;
  const std::string name = text_member(model, "unk_token", "the model");
  const std::optional<Token> id = find_piece(vocabulary, name);
  if (!id) throw bad(fmt::format("the unknown token {} is no piece", quote(name)));
  return id;
}

void check_model(const json& model) {
  if (!model.is_object()) throw bad("there is no model");
  if (const std::string type = text_member(model, "type", "the model"); type != "BPE")
    throw unknown(fmt::format("the model {} is unknown", quote(type)));
  allow_only(model, "the model",
             {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  if (!member(model, "vocab").is_object() || !member(model, "merges").is_array())
    throw bad("the model has no pieces or no merges");
  if (const json& dropout = member(model, "dropout"); !dropout.is_null() && dropout != 0.0)
    throw unknown("the model has dropout");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (const json& value = member(model, affix); !value.is_null() && value != "")
      throw unknown(fmt::format("the model has a {}", affix));
}

// `vocabulary` has its pieces, their kinds and the merges.
void become_byte_level(const json& document, const std::vector<const json*>& steps, Vocabulary& vocabulary) {
  const json& model = document["model"];
  const Normalizer normalizer = read_normalizer(member(document, "normalizer"));
  if (normalizer.marks_spaces || normalizer.prepends_mark)
    throw unknown("a byte-level model has a normalizer that marks spaces");
  if (flag_member(model, "byte_fallback", false, "the model"))
    throw unknown("a byte-level model falls back to bytes");
  check_byte_level_decoder(member(document, "decoder"));
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = read_byte_level_pre_tokenizer(steps);
  vocabulary.nfc = normalizer.nfc;
  vocabulary.ignore_merges = flag_member(model, "ignore_merges", false, "the model");
  vocabulary.byte_unknown = unknown_token(model, vocabulary);
}

// Ways to cut a piece in two that are pieces themselves: a conversion writes each as a merge.
size_t count_splits(std::string_view piece, const std::unordered_map<std::string_view, Token>& ids) {
  size_t splits = 0;
  for (size_t at = first_character(piece); at < piece.size(); at += first_character(piece.substr(at)))
    if (ids.contains(piece.substr(0, at)) && ids.contains(piece.substr(at))) ++splits;
  return splits;
}

// Throws unless the merges are those that a conversion of a SentencePiece model writes: from others the same
// text would have other ids.
void check_merges(const Vocabulary& vocabulary) {
  const auto refuse = [](const std::string& what) {
    return Error(ErrorKind::bad_file, "tokenizer.json: " + what,
                 "kveval knows BPE with byte fallback only as a SentencePiece model is converted to.");
  };
  std::unordered_map<std::string_view, Token> ids;
  ids.reserve(vocabulary.pieces.size());
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) ids.emplace(vocabulary.pieces[id], Token(id));

  // A conversion sorts merges by what they make, best first, and gives pieces ids in the same order.
  size_t merges = 0, splits = 0;
  Token last = 0;
  for (const std::string& merge : vocabulary.merges) {
    const size_t space = merge.find(' ', 1);
    std::string product = merge;
    if (space != std::string::npos) product.erase(space, 1);
    const auto found = ids.find(product);
    if (space == std::string::npos || found == ids.end())
      throw refuse(fmt::format("the merge {} makes no piece", quote(merge)));
    if (vocabulary.kinds[size_t(found->second)] != PieceKind::normal) continue;
    if (found->second < last)
      throw refuse(fmt::format("the merges are not in the order of the pieces at {}", quote(merge)));
    last = found->second;
    ++merges;
  }
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id)
    if (vocabulary.kinds[id] == PieceKind::normal) splits += count_splits(vocabulary.pieces[id], ids);
  if (merges != splits)
    throw refuse(fmt::format("there are {} merges where the pieces can be made in {} ways", merges, splits));
}

// Gives normal pieces the scores of the SentencePiece model that a file was converted from, and byte pieces
// their kind; takes the merges.
void score_by_merges(Vocabulary& vocabulary) {
  check_merges(vocabulary);
  vocabulary.merges.clear();
  vocabulary.scores.resize(vocabulary.pieces.size());
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    if (vocabulary.kinds[id] != PieceKind::normal) continue;
    if (byte_of_piece(vocabulary.pieces[id]))
      vocabulary.kinds[id] = PieceKind::byte;
    else
      vocabulary.scores[id] = -float(id);
  }
}

void become_sentencepiece(const json& document, const std::vector<const json*>& steps,
                          Vocabulary& vocabulary) {
  const json& model = document["model"];
  const Normalizer normalizer = read_normalizer(member(document, "normalizer"));
  if (normalizer.nfc) throw unknown("a SentencePiece model has the normalizer 'NFC'");
  if (!flag_member(model, "byte_fallback", false, "the model"))
    throw unknown("the model is neither byte-level nor falls back to bytes");
  if (flag_member(model, "ignore_merges", false, "the model"))
    throw unknown("a SentencePiece model has the option ignore_merges");
  vocabulary.model = "llama";
  vocabulary.prefix = read_sentencepiece_prefix(normalizer, steps);
  check_sentencepiece_decoder(member(document, "decoder"), vocabulary.prefix != SpacePrefix::none);
  vocabulary.unknown = unknown_token(model, vocabulary);
  score_by_merges(vocabulary);
}

}  // namespace

Vocabulary read_tokenizer_json(std::string_view text) {
  ModelTables tables;
  const json document = parse_tokenizer_json(text, tables);
  allow_only(document, "the file",
             {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
              "post_processor", "decoder", "model"});
  check_model(member(document, "model"));
  Vocabulary vocabulary;
  place_pieces(std::move(tables.pieces), read_added_tokens(member(document, "added_tokens")), vocabulary);
  vocabulary.merges = std::move(tables.merges);
  const auto steps = steps_of(member(document, "pre_tokenizer"), "pre-tokenizer", "pretokenizers");
  const bool byte_level =
      !steps.empty() && text_member(*steps.back(), "type", "pre-tokenizer") == "ByteLevel";
  if (byte_level)
    become_byte_level(document, steps, vocabulary);
  else
    become_sentencepiece(document, steps, vocabulary);
  read_post_processor(member(document, "post_processor"), vocabulary);
  return vocabulary;
}

TokenizerConfig read_tokenizer_config(std::string_view text) {
  const json document = parse_json("tokenizer_config.json", text);
  const auto token = [&document](const char* name) -> std::optional<std::string> {
    const json& value = member(document, name);
    const json& content = value.is_object() ? member(value, "content") : value;
    if (content.is_null()) return std::nullopt;
    if (!content.is_string())
      throw Error(ErrorKind::bad_file, fmt::format("tokenizer_config.json: '{}' is no token", name));
    return content.get<std::string>();
  };
  TokenizerConfig config{.bos = token("bos_token"), .eos = token("eos_token"), .chat_template = {}};
  const json& chat = member(document, "chat_template");
  if (chat.is_string()) config.chat_template = chat.get<std::string>();
  if (chat.is_array())
    for (const json& named : chat)
      if (named.is_object() && member(named, "name") == "default" && member(named, "template").is_string())
        config.chat_template = named["template"].get<std::string>();
  return config;
}

}  // namespace kveval
