#include "engine/text/tokenizer_json_parser.h"

#include <fmt/format.h>

#include <unordered_set>
#include <utility>

#include "engine/error.h"
#include "engine/quote.h"

namespace kveval {
namespace {

using nlohmann::json;

constexpr size_t kDeepest = 64;
// Of what is kept as a document, where a value takes up to thirty times its text. Gemma 3 has 51,000.
constexpr size_t kMaxValues = 1 << 18;

// The parser's callback: sees every value, keeps what the document is to hold.
class Reader {
 public:
  Reader(std::string_view name, ModelTables* tables) : name_(name), tables_(tables) {}

  bool on(json::parse_event_t event, json& value) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (levels_.size() >= kDeepest) throw bad(fmt::format("has more than {} levels", kDeepest));
        if (in_vocab()) throw bad(fmt::format("has an id that is none, of {}", quote(levels_.back().key)));
        if (in_merges(4)) throw bad(fmt::format("has a merge that is no pair, {}", tables_->merges.size()));
        levels_.push_back({.is_array = event == json::parse_event_t::array_start, .key = {}, .names = {}});
        count();
        return true;
      case json::parse_event_t::key: return on_key(value.get_ref<const std::string&>());
      case json::parse_event_t::value: return on_value(value);
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end: levels_.pop_back(); return on_end();
    }
    return true;
  }

 private:
  struct Level {
    bool is_array;
    std::string key;  // the member being read
    std::unordered_set<std::string> names;
  };

  Error bad(const std::string& what) const {
    return Error(ErrorKind::bad_file, fmt::format("{} {}", name_, what));
  }

  void count() {
    if (++values_ > kMaxValues) throw bad(fmt::format("has more than {} values", kMaxValues));
  }

  bool inside(const char* part, size_t depth) const {
    return tables_ && levels_.size() == depth && !levels_[0].is_array && levels_[0].key == "model" &&
           !levels_[1].is_array && levels_[1].key == part;
  }
  bool in_vocab() const { return inside("vocab", 3) && !levels_[2].is_array; }
  bool in_merges(size_t depth) const { return inside("merges", depth) && levels_[2].is_array; }

  bool on_key(const std::string& name) {
    levels_.back().key = name;
    if (in_vocab()) return false;
    if (!levels_.back().names.insert(name).second)
      throw bad(fmt::format("has the member {} twice", quote(name)));
    return true;
  }

  bool on_value(const json& value) {
    if (in_vocab()) {
      if (!value.is_number_unsigned() || value.get<uint64_t>() >= kMaxPieces)
        throw bad(fmt::format("has an id that is none, of {}", quote(levels_.back().key)));
      if (tables_->pieces.size() >= kMaxPieces) throw bad(fmt::format("has more than {} pieces", kMaxPieces));
      if (levels_.back().key.size() > kMaxPieceBytes)
        throw bad(
            fmt::format("has a piece of more than {} bytes, {}", kMaxPieceBytes, quote(levels_.back().key)));
      tables_->pieces.push_back({value.get<Token>(), levels_.back().key});
      return false;
    }
    if (in_merges(3)) {
      if (!value.is_string())
        throw bad(fmt::format("has a merge that is no pair, {}", tables_->merges.size()));
      add_merge(value.get<std::string>());
      return false;
    }
    if (in_merges(4) && levels_.back().is_array) {
      if (!value.is_string() || halves_.size() == 2)
        throw bad(fmt::format("has a merge that is no pair, {}", tables_->merges.size()));
      halves_.push_back(value.get<std::string>());
      return false;
    }
    count();
    return true;
  }

  bool on_end() {
    if (!in_merges(3)) return true;
    if (halves_.size() != 2 || halves_[0].find(' ', 1) != std::string::npos)
      throw bad(fmt::format("has a merge that is no pair, {}", tables_->merges.size()));
    add_merge(halves_[0] + ' ' + halves_[1]);
    halves_.clear();
    --values_;
    return false;
  }

  void add_merge(std::string merge) {
    if (tables_->merges.size() >= kMaxMerges) throw bad(fmt::format("has more than {} merges", kMaxMerges));
    tables_->merges.push_back(std::move(merge));
  }

  std::string_view name_;
  ModelTables* tables_;
  std::vector<Level> levels_;
  std::vector<std::string> halves_;  // of the merge being read
  size_t values_ = 0;
};

json parse(std::string_view name, std::string_view text, ModelTables* tables) {
  // The parser takes a NUL for the end of its input, whatever follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos)
    throw Error(ErrorKind::bad_file, fmt::format("{} is malformed JSON at byte {} (a NUL)", name, nul));
  Reader reader(name, tables);
  json document;
  try {
    document = json::parse(
        text, [&reader](int, json::parse_event_t event, json& value) { return reader.on(event, value); });
  } catch (const json::parse_error& error) {
    throw Error(ErrorKind::bad_file, fmt::format("{} is malformed JSON at byte {}", name, error.byte));
  } catch (const json::exception&) {
    throw Error(ErrorKind::bad_file, fmt::format("{} is malformed JSON", name));
  }
  if (!document.is_object()) throw Error(ErrorKind::bad_file, fmt::format("{} is no JSON object", name));
  return document;
}

}  // namespace

json parse_tokenizer_json(std::string_view text, ModelTables& tables) {
  return parse("tokenizer.json", text, &tables);
}

json parse_json(std::string_view name, std::string_view text) { return parse(name, text, nullptr); }

}  // namespace kveval
