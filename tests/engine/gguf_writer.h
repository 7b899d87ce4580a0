// Writes GGUF byte by byte as the specification lays it out, wrong values included.
#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kveval {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string raw_text(std::string_view text) { return raw(uint64_t(text.size())) + std::string(text); }

struct GgufWriter {
  struct TensorInfo {
    std::string name;
    std::vector<uint64_t> dimensions;  // ne order: the contiguous one first
    uint32_t type;
    std::string data;
    std::optional<uint64_t> offset;  // else after the tensors before, padded
  };

  std::string magic = "GGUF";
  uint32_t version = 3;
  uint64_t alignment = 32;
  std::optional<uint64_t> tensor_count, key_count;  // else what there is
  std::vector<std::string> entries;
  std::vector<TensorInfo> tensors;

  GgufWriter& entry(std::string_view key, uint32_t type, const std::string& value) {
    entries.push_back(raw_text(key) + raw(type) + value);
    return *this;
  }
  GgufWriter& u32(std::string_view key, uint32_t value) { return entry(key, 4, raw(value)); }
  GgufWriter& text(std::string_view key, std::string_view value) { return entry(key, 8, raw_text(value)); }
  GgufWriter& array(std::string_view key, uint32_t element, uint64_t count, const std::string& elements) {
    return entry(key, 9, raw(element) + raw(count) + elements);
  }
  GgufWriter& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string elements;
    for (const std::string& value : values) elements += raw_text(value);
    return array(key, 8, values.size(), elements);
  }
  GgufWriter& tensor(TensorInfo info) {
    tensors.push_back(std::move(info));
    return *this;
  }

  std::string header() const {
    std::string bytes = magic + raw(version) + raw(tensor_count.value_or(tensors.size())) +
                        raw(key_count.value_or(entries.size()));
    for (const std::string& e : entries) bytes += e;
    uint64_t running = 0;
    for (const TensorInfo& t : tensors) {
      bytes += raw_text(t.name) + raw(uint32_t(t.dimensions.size()));
      for (const uint64_t d : t.dimensions) bytes += raw(d);
      bytes += raw(t.type) + raw(t.offset.value_or(running));
      running += padded(t.data.size());
    }
    return bytes;
  }

  std::string file() const {
    std::string bytes = header();
    if (!tensors.empty()) bytes.resize(padded(bytes.size()));
    for (const TensorInfo& t : tensors) {
      bytes += t.data;
      if (&t != &tensors.back()) bytes.resize(bytes.size() + padded(t.data.size()) - t.data.size());
    }
    return bytes;
  }

  uint64_t padded(uint64_t size) const { return (size + alignment - 1) / alignment * alignment; }
};

}  // namespace kveval
