// The keys of a JSON object in a model's files. Remembers which were asked for: a key that nobody asked for
// may change what the model computes, so a loader refuses it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"

namespace kveval {

// The readers return nothing when the key is absent or null, and throw Error{bad_file} naming file and key
// when its type or value is not what was asked for. Views `object`, which must outlive it.
class JsonKeys {
 public:
  // `parent` names the object inside the file, "rope_scaling" for instance; empty: the file's own.
  // Throws Error{bad_file} when `object` is none.
  JsonKeys(std::string path, const nlohmann::json& object, std::string parent = {});

  bool empty() const { return object_->empty(); }
  bool has(std::string_view key) const;       // there, and not null
  bool has_null(std::string_view key) const;  // there, and null

  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max);
  std::optional<double> number(std::string_view key);  // finite
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string> text(std::string_view key);
  std::optional<JsonKeys> object(std::string_view key);
  std::vector<int64_t> integers(std::string_view key, int64_t min, int64_t max);  // one, or a list
  std::optional<std::vector<std::string>> texts(std::string_view key);            // a list

  int64_t need_integer(std::string_view key, int64_t min, int64_t max);
  double need_number(std::string_view key);

  // Keys whose value changes nothing.
  void ignore(std::initializer_list<std::string_view> keys);
  // A switch that kveval knows in one position only: throws unless the key is absent, null or has this value.
  void require(std::string_view key, const nlohmann::json& value);

  // Throws naming the first key that nobody asked for. A null one is switched off.
  void refuse_unread() const;

  Error error(std::string_view key, const std::string& what, std::string hint = {}) const;
  const std::string& path() const { return path_; }

 private:
  const nlohmann::json* take(std::string_view key);
  int64_t integer_of(const nlohmann::json& value, std::string_view key, int64_t min, int64_t max) const;
  std::string name_of(std::string_view key) const;

  std::string path_, parent_;
  const nlohmann::json* object_;
  std::set<std::string, std::less<>> read_;
};

// The JSON object in a file of at most `most` bytes, read strictly (engine/text/tokenizer_json_parser.h).
// Throws Error{bad_file} naming the file.
nlohmann::json read_json_file(const std::string& path, uint64_t most);

// A whole file of at most `most` bytes. Throws Error{bad_file} naming it.
std::string read_text_file(const std::string& path, uint64_t most);

}  // namespace kveval
