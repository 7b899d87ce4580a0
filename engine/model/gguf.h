// GGUF, versions 2 and 3, little-endian: metadata and tensors of a model, one file or split.
//
// A file is refused, with an Error{bad_file} that names it and the field, when any count, length, offset,
// type or alignment in it is out of bounds, repeated or overlapping; see the limits below. What a key *means*
// is the model loader's to check: it asks for each key with the type and the largest value it can take, and
// can then refuse the keys nobody asked for. Opening allocates less than four times the file's size: text and
// arrays stay views into the map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.h"
#include "engine/model/mapped_file.h"
#include "engine/model/tensor.h"

namespace kveval {

// The largest that kveval reads; far above real models, far below what would hurt.
inline constexpr uint64_t kGgufMaxKeys = 1 << 16;
inline constexpr uint64_t kGgufMaxTensors = 1 << 16;
inline constexpr uint64_t kGgufMaxKeyBytes = 1 << 16;
inline constexpr uint64_t kGgufMaxTextBytes = 16 << 20;
inline constexpr uint64_t kGgufMaxArrayElements = 16 << 20;
inline constexpr uint64_t kGgufMaxHeaderBytes = 100'000'000;
inline constexpr uint64_t kGgufMinAlignment = 8, kGgufMaxAlignment = 1 << 16;
inline constexpr uint64_t kGgufMaxTensorName = 63;
inline constexpr uint32_t kGgufMaxDimensions = 4;
inline constexpr uint64_t kGgufMaxSplits = 1024;

// The numbers are the file's.
enum class GgufValue : uint8_t {
  u8 = 0,
  i8 = 1,
  u16 = 2,
  i16 = 3,
  u32 = 4,
  i32 = 5,
  f32 = 6,
  boolean = 7,
  text = 8,
  array = 9,
  u64 = 10,
  i64 = 11,
  f64 = 12,
};

// Every reader returns nothing when the key is absent, marks it as read when it is there, and throws
// Error{bad_file} naming file and key when its type or a value is not what was asked for. The need_* readers
// throw when it is absent too. Text is any bytes, not always UTF-8; views live as long as the metadata or its
// tensors. Not for concurrent use: reading marks.
class GgufMetadata {
 public:
  bool has(std::string_view key) const { return entry(key) != nullptr; }
  bool is_array(std::string_view key) const;
  bool is_array_of(std::string_view key, GgufValue element) const;

  std::optional<uint64_t> count(std::string_view key, uint64_t max);  // an integer of any width in 0..max
  std::optional<double> number(std::string_view key);                 // f32 or f64, finite
  std::optional<bool> flag(std::string_view key);
  std::optional<std::string_view> text(std::string_view key);
  uint64_t need_count(std::string_view key, uint64_t max);
  double need_number(std::string_view key);
  std::string_view need_text(std::string_view key);

  // Any integer type.
  std::optional<std::vector<int64_t>> integers(std::string_view key, int64_t min, int64_t max);
  std::optional<std::vector<float>> numbers(std::string_view key);  // f32, finite
  std::optional<std::vector<bool>> flags(std::string_view key);
  std::optional<std::vector<std::string_view>> texts(std::string_view key);

  // One value for each of `n` layers: an integer stands for all of them, an array must have n elements.
  std::optional<std::vector<uint64_t>> counts_per_layer(std::string_view key, size_t n, uint64_t max);

  std::vector<std::string_view> keys() const;    // sorted
  std::vector<std::string_view> unread() const;  // sorted
  const std::string& path() const { return file_->path(); }
  Error error(std::string_view key, const std::string& what, std::string hint = {}) const;  // "key 'a' WHAT"

  struct Entry {
    std::string_view key;
    const std::byte* value;  // of text and arrays, the first byte after their length
    uint64_t count;          // bytes of a text, elements of an array, else 1
    GgufValue type;
    GgufValue element;  // of an array
    bool read;
  };
  GgufMetadata(std::shared_ptr<const MappedFile> file, std::vector<Entry> sorted_entries);

 private:
  const Entry* entry(std::string_view key) const;
  Entry* take(std::string_view key);
  Entry* take(std::string_view key, GgufValue type);
  Error type_error(std::string_view key, GgufValue is, std::string_view needed) const;
  Error element_error(std::string_view key, GgufValue is, std::string_view needed) const;
  int64_t integer_at(const Entry& from, GgufValue type, size_t index, int64_t min, int64_t max) const;

  std::shared_ptr<const MappedFile> file_;
  std::vector<Entry> entries_;  // sorted by key
};

struct Gguf {
  GgufMetadata metadata;  // of the first file
  TensorSet tensors;      // of all files
};

// `path` is a GGUF file, or the first (...-00001-of-0000N.gguf) of a split model, whose other files are then
// read too.
Gguf read_gguf(const std::string& path);

}  // namespace kveval
