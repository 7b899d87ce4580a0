// Typed access to the metadata that gguf.cpp has checked and indexed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "engine/model/file_error.h"
#include "engine/model/gguf.h"

namespace kveval {
namespace {

template <class T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool is_integer(GgufValue type) {
  return type <= GgufValue::i32 || type == GgufValue::u64 || type == GgufValue::i64;
}

std::string_view name_of(GgufValue type) {
  switch (type) {
    case GgufValue::f32:
    case GgufValue::f64: return "a float";
    case GgufValue::boolean: return "a boolean";
    case GgufValue::text: return "a text";
    case GgufValue::array: return "an array";
    default: return "an integer";
  }
}

// `max` as integer_at takes it.
int64_t at_most(uint64_t max) { return int64_t(std::min(max, uint64_t(INT64_MAX))); }

}  // namespace

GgufMetadata::GgufMetadata(std::shared_ptr<const MappedFile> file, std::vector<Entry> sorted_entries)
    : file_(std::move(file)), entries_(std::move(sorted_entries)) {}

Error GgufMetadata::error(std::string_view key, const std::string& what, std::string hint) const {
  return file_error(path(), fmt::format("key {} {}", quote(key), what), std::move(hint));
}

Error GgufMetadata::type_error(std::string_view key, GgufValue is, std::string_view needed) const {
  return error(key, fmt::format("is {} where {} is needed", name_of(is), needed));
}

Error GgufMetadata::element_error(std::string_view key, GgufValue is, std::string_view needed) const {
  return error(key, fmt::format("is an array whose element is {} where {} is needed", name_of(is), needed));
}

const GgufMetadata::Entry* GgufMetadata::entry(std::string_view key) const {
  const auto at = std::ranges::lower_bound(entries_, key, {}, &Entry::key);
  return at != entries_.end() && at->key == key ? &*at : nullptr;
}

GgufMetadata::Entry* GgufMetadata::take(std::string_view key) {
  auto* const found = const_cast<Entry*>(entry(key));
  if (found != nullptr) found->read = true;
  return found;
}

GgufMetadata::Entry* GgufMetadata::take(std::string_view key, GgufValue type) {
  Entry* const found = take(key);
  if (found != nullptr && found->type != type) throw type_error(key, found->type, name_of(type));
  return found;
}

bool GgufMetadata::is_array(std::string_view key) const {
  const Entry* const found = entry(key);
  return found != nullptr && found->type == GgufValue::array;
}

bool GgufMetadata::is_array_of(std::string_view key, GgufValue element) const {
  return is_array(key) && entry(key)->element == element;
}

// Element `index` of integers of this type at from.value; a scalar is element 0.
int64_t GgufMetadata::integer_at(const Entry& from, GgufValue type, size_t index, int64_t min,
                                 int64_t max) const {
  const auto outside = [&](auto value) {
    return error(from.key, fmt::format("has the value {}, outside {} to {}", value, min, max));
  };
  int64_t value = 0;
  switch (type) {
    case GgufValue::u8: value = load<uint8_t>(from.value + index); break;
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): the sign counts
    case GgufValue::i8: value = load<int8_t>(from.value + index); break;
    case GgufValue::u16: value = load<uint16_t>(from.value + 2 * index); break;
    case GgufValue::i16: value = load<int16_t>(from.value + 2 * index); break;
    case GgufValue::u32: value = load<uint32_t>(from.value + 4 * index); break;
    case GgufValue::i32: value = load<int32_t>(from.value + 4 * index); break;
    case GgufValue::i64: value = load<int64_t>(from.value + 8 * index); break;
    default: {
      const auto wide = load<uint64_t>(from.value + 8 * index);
      if (wide > uint64_t(INT64_MAX)) throw outside(wide);
      value = int64_t(wide);
    }
  }
  if (value < min || value > max) throw outside(value);
  return value;
}

std::optional<uint64_t> GgufMetadata::count(std::string_view key, uint64_t max) {
  const Entry* const found = take(key);
  if (found == nullptr) return std::nullopt;
  if (!is_integer(found->type)) throw type_error(key, found->type, "an integer");
  return uint64_t(integer_at(*found, found->type, 0, 0, at_most(max)));
}

std::optional<double> GgufMetadata::number(std::string_view key) {
  const Entry* const found = take(key);
  if (found == nullptr) return std::nullopt;
  if (found->type != GgufValue::f32 && found->type != GgufValue::f64)
    throw type_error(key, found->type, "a float");
  const double value =
      found->type == GgufValue::f32 ? double(load<float>(found->value)) : load<double>(found->value);
  if (!std::isfinite(value)) throw error(key, "is not finite");
  return value;
}

std::optional<bool> GgufMetadata::flag(std::string_view key) {
  const Entry* const found = take(key, GgufValue::boolean);
  if (found == nullptr) return std::nullopt;
  return found->value[0] != std::byte(0);
}

std::optional<std::string_view> GgufMetadata::text(std::string_view key) {
  const Entry* const found = take(key, GgufValue::text);
  if (found == nullptr) return std::nullopt;
  return std::string_view(reinterpret_cast<const char*>(found->value), found->count);
}

uint64_t GgufMetadata::need_count(std::string_view key, uint64_t max) {
  if (!has(key)) throw error(key, "is missing");
  return *count(key, max);
}

double GgufMetadata::need_number(std::string_view key) {
  if (!has(key)) throw error(key, "is missing");
  return *number(key);
}

std::string_view GgufMetadata::need_text(std::string_view key) {
  if (!has(key)) throw error(key, "is missing");
  return *text(key);
}

std::optional<std::vector<int64_t>> GgufMetadata::integers(std::string_view key, int64_t min, int64_t max) {
  const Entry* const found = take(key, GgufValue::array);
  if (found == nullptr) return std::nullopt;
  if (!is_integer(found->element)) throw element_error(key, found->element, "an integer");
  constexpr uint64_t kMost = 1 << 20;  // each takes eight bytes here, and may take one in the file
  if (found->count > kMost)
    throw error(key, fmt::format("has {} elements, more than kveval reads ({})", found->count, kMost));
  std::vector<int64_t> values(found->count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = integer_at(*found, found->element, i, min, max);
  return values;
}

std::optional<std::vector<float>> GgufMetadata::numbers(std::string_view key) {
  const Entry* const found = take(key, GgufValue::array);
  if (found == nullptr) return std::nullopt;
  if (found->element != GgufValue::f32) throw element_error(key, found->element, "a 32-bit float");
  std::vector<float> values(found->count);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = load<float>(found->value + 4 * i);
    if (!std::isfinite(values[i]))
      throw file_error(path(), fmt::format("element {} of key {} is not finite", i, quote(key)));
  }
  return values;
}

std::optional<std::vector<bool>> GgufMetadata::flags(std::string_view key) {
  const Entry* const found = take(key, GgufValue::array);
  if (found == nullptr) return std::nullopt;
  if (found->element != GgufValue::boolean) throw element_error(key, found->element, "a boolean");
  std::vector<bool> values(found->count);
  for (size_t i = 0; i < values.size(); ++i) values[i] = found->value[i] != std::byte(0);
  return values;
}

std::optional<std::vector<std::string_view>> GgufMetadata::texts(std::string_view key) {
  const Entry* const found = take(key, GgufValue::array);
  if (found == nullptr) return std::nullopt;
  if (found->element != GgufValue::text) throw element_error(key, found->element, "a text");
  std::vector<std::string_view> values;
  values.reserve(found->count);
  // Lengths are read a second time here: bounds are checked again, because the file may have been written
  // since.
  std::span<const std::byte> rest(found->value, file_->bytes().data() + file_->bytes().size());
  for (size_t i = 0; i < found->count; ++i) {
    const uint64_t length = rest.size() >= sizeof(uint64_t) ? load<uint64_t>(rest.data()) : UINT64_MAX;
    if (rest.size() < sizeof(uint64_t) || length > rest.size() - sizeof(uint64_t))
      throw error(key, "changed while the file was read");
    values.emplace_back(reinterpret_cast<const char*>(rest.data() + sizeof(uint64_t)), length);
    rest = rest.subspan(sizeof(uint64_t) + length);
  }
  return values;
}

std::optional<std::vector<uint64_t>> GgufMetadata::counts_per_layer(std::string_view key, size_t n,
                                                                    uint64_t max) {
  if (!is_array(key)) {
    const std::optional<uint64_t> value = count(key, max);
    if (!value) return std::nullopt;
    return std::vector<uint64_t>(n, *value);
  }
  const Entry& array = *take(key, GgufValue::array);
  if (array.count != n) throw error(key, fmt::format("has {} values for {} layers", array.count, n));
  if (!is_integer(array.element)) throw element_error(key, array.element, "an integer");
  std::vector<uint64_t> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = uint64_t(integer_at(array, array.element, i, 0, at_most(max)));
  return values;
}

std::vector<std::string_view> GgufMetadata::keys() const {
  std::vector<std::string_view> names;
  for (const Entry& e : entries_) names.push_back(e.key);
  return names;
}

std::vector<std::string_view> GgufMetadata::unread() const {
  std::vector<std::string_view> names;
  for (const Entry& e : entries_)
    if (!e.read) names.push_back(e.key);
  return names;
}

}  // namespace kveval
