// GGUF models of a few hundred kilobytes, right until a test changes a key or a tensor.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/model/weights.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/gguf_writer.h"
#include "tests/engine/temporary_file.h"

namespace kveval {

// What follows a key: its type and value.
std::string value_of(uint32_t value);
std::string value_of(int32_t value);
std::string value_of(float value);
std::string value_of(bool value);
std::string value_of(const char* value);
std::string value_of(const std::string& value);
std::string value_of(const std::vector<uint32_t>& values);
std::string value_of(const std::vector<int32_t>& values);
std::string value_of(const std::vector<float>& values);
std::string value_of(const std::vector<bool>& values);
std::string value_of(const std::vector<std::string>& values);

struct SmallGguf {
  std::string architecture;
  std::map<std::string, std::string> keys;
  std::map<std::string, GgufWriter::TensorInfo> tensors;

  // `key` without a dot-separated beginning that this file has belongs to the architecture: "block_count".
  template <class T>
  SmallGguf& set(const std::string& key, const T& value) {
    keys[full(key)] = value_of(value);
    return *this;
  }
  SmallGguf& drop(const std::string& key) {
    keys.erase(full(key));
    return *this;
  }
  // Float32 values around `mean`, by the tensor's name; shape as Tensor has it: [rows, cols].
  SmallGguf& tensor(const std::string& name, std::vector<uint64_t> shape, float mean = 0);
  SmallGguf& set_vocabulary(const Vocabulary& vocabulary);

  std::string full(const std::string& key) const;
  std::string file() const;
};

// heads of 64 in a stream of 128; two heads on one KV head, feed-forward of 96, context 256.
SmallGguf small_gguf(const std::string& architecture, int layers = 2);

// Its matrices, without the embedding, in head_dim instead of 64.
void resize_heads(SmallGguf& file, int layers, int head_dim);

// For tests that load such files.
class SmallGgufTest : public testing::Test {
 protected:
  Model load(const SmallGguf& file) const;
  // Message and hint of the Error{bad_file} that loading ends in, which must name the file.
  std::string refusal(const SmallGguf& file) const;

  TemporaryFolder folder_;
};

}  // namespace kveval
