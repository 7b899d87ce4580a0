#include "engine/model/json_keys.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "engine/model/file_error.h"
#include "engine/model/mapped_file.h"
#include "engine/text/tokenizer_json_parser.h"

namespace kveval {

using nlohmann::json;

JsonKeys::JsonKeys(std::string path, const json& object, std::string parent)
    : path_(std::move(path)), parent_(std::move(parent)), object_(&object) {
  if (!object.is_object()) throw file_error(path_, fmt::format("{} is no JSON object", quote(parent_)));
}

std::string JsonKeys::name_of(std::string_view key) const {
  return quote(parent_.empty() ? std::string(key) : fmt::format("{}.{}", parent_, key));
}

Error JsonKeys::error(std::string_view key, const std::string& what, std::string hint) const {
  return file_error(path_, fmt::format("{} {}", name_of(key), what), std::move(hint));
}

bool JsonKeys::has(std::string_view key) const {
  const auto found = object_->find(key);
  return found != object_->end() && !found->is_null();
}

bool JsonKeys::has_null(std::string_view key) const { return object_->contains(key) && !has(key); }

const json* JsonKeys::take(std::string_view key) {
  read_.emplace(key);
  const auto found = object_->find(key);
  return found == object_->end() || found->is_null() ? nullptr : &*found;
}

int64_t JsonKeys::integer_of(const json& value, std::string_view key, int64_t min, int64_t max) const {
  const bool fits =
      value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max)
    throw error(key, fmt::format("is {}, no whole number from {} to {}", quote(value.dump()), min, max));
  return value.get<int64_t>();
}

std::optional<int64_t> JsonKeys::integer(std::string_view key, int64_t min, int64_t max) {
  const json* value = take(key);
  if (value == nullptr) return std::nullopt;
  return integer_of(*value, key, min, max);
}

std::optional<double> JsonKeys::number(std::string_view key) {
  const json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->get<double>()))
    throw error(key, fmt::format("is {}, no finite number", quote(value->dump())));
  return value->get<double>();
}

std::optional<bool> JsonKeys::flag(std::string_view key) {
  const json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw error(key, "is neither true nor false");
  return value->get<bool>();
}

std::optional<std::string> JsonKeys::text(std::string_view key) {
  const json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw error(key, "is no text");
  return value->get<std::string>();
}

std::optional<JsonKeys> JsonKeys::object(std::string_view key) {
  const json* value = take(key);
  if (value == nullptr) return std::nullopt;
  return JsonKeys(path_, *value, parent_.empty() ? std::string(key) : fmt::format("{}.{}", parent_, key));
}

std::vector<int64_t> JsonKeys::integers(std::string_view key, int64_t min, int64_t max) {
  const json* value = take(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return {integer_of(*value, key, min, max)};
  std::vector<int64_t> numbers;
  for (const json& one : *value) {
    if (one.is_null()) throw error(key, "holds a null");
    numbers.push_back(integer_of(one, key, min, max));
  }
  return numbers;
}

std::optional<std::vector<std::string>> JsonKeys::texts(std::string_view key) {
  const json* value = take(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) throw error(key, "is no list");
  std::vector<std::string> list;
  for (const json& one : *value) {
    if (!one.is_string()) throw error(key, "holds something that is no text");
    list.push_back(one.get<std::string>());
  }
  return list;
}

int64_t JsonKeys::need_integer(std::string_view key, int64_t min, int64_t max) {
  const std::optional<int64_t> value = integer(key, min, max);
  if (!value) throw error(key, "is missing");
  return *value;
}

double JsonKeys::need_number(std::string_view key) {
  const std::optional<double> value = number(key);
  if (!value) throw error(key, "is missing");
  return *value;
}

void JsonKeys::ignore(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) read_.emplace(key);
}

void JsonKeys::require(std::string_view key, const json& value) {
  const json* found = take(key);
  if (found != nullptr && *found != value)
    throw error(key, fmt::format("is {}; kveval knows {} only", quote(found->dump()), value.dump()));
}

void JsonKeys::refuse_unread() const {
  for (const auto& [key, value] : object_->items())
    if (!value.is_null() && !read_.contains(key))
      throw error(key, "is a key that kveval does not know",
                  "what it changes would be left out: kveval refuses rather than guesses");
}

std::string read_text_file(const std::string& path, uint64_t most) {
  const auto file = MappedFile::open(path);
  if (file->bytes().size() > most)
    throw file_error(path,
                     fmt::format("has {} bytes, more than the limit of {}", file->bytes().size(), most));
  std::string text(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
  file->check_intact();
  return text;
}

json read_json_file(const std::string& path, uint64_t most) {
  return parse_json(path + ":", read_text_file(path, most));
}

}  // namespace kveval
