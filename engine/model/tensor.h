// A named weight as its file holds it: quantized blocks or floats, viewed, not copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model/mapped_file.h"
#include "engine/model/tensor_type.h"

namespace kveval {

struct TypeInfo {
  std::string_view name;  // as files and their tools spell it: "Q4_K"
  int block_elements;     // 1 for the float types
  int block_bytes;
  int group_elements;  // consecutive elements that share a scale (block_quants.h); 0 for the float types
  bool has_offset;
};
const TypeInfo& info_of(TensorType type);

struct Tensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<int64_t> shape;  // row-major, the last dimension contiguous; empty: one value; every one >= 1
  std::span<const std::byte> data;    // rows(tensor) * row_bytes(tensor), at any address
  std::shared_ptr<const void> owner;  // what keeps `data` alive
};

int64_t cols(const Tensor& tensor);  // the last dimension, a multiple of block_elements
int64_t rows(const Tensor& tensor);  // the product of the others
size_t row_bytes(const Tensor& tensor);

// Bytes of a tensor of this type and shape. None when a dimension is below 1 or above 2^31, the last one is
// no multiple of the block, or the product of any of these passes 2^63: checked before each multiplication,
// so that no product can wrap to something small.
std::optional<uint64_t> byte_size(TensorType type, std::span<const int64_t> shape);

// cols(tensor) floats to `out`. 0 <= row < rows(tensor).
void dequantize_row(const Tensor& tensor, int64_t row, float* out);

std::string shape_text(std::span<const int64_t> shape);  // "[49152, 576]"

// All tensors of a model, from one file or several. Remembers which were asked for, so that a loader can
// refuse those it does not understand.
class TensorSet {
 public:
  TensorSet() = default;
  // `path` begins the messages. Throws Error{bad_file} naming a tensor that occurs twice.
  TensorSet(std::string path, std::vector<Tensor> tensors,
            std::vector<std::shared_ptr<const MappedFile>> files);

  std::span<const Tensor> all() const { return tensors_; }  // in the order of the files
  const Tensor* peek(std::string_view name) const;          // null when absent
  const Tensor* find(std::string_view name);                // the same, and marks it as used
  // The same, but throws Error{bad_file} naming the tensor when it is absent or of another shape.
  const Tensor& need(std::string_view name);
  const Tensor& need(std::string_view name, std::initializer_list<int64_t> shape);
  std::vector<std::string_view> unused() const;  // names in the order of the files

  std::span<const std::shared_ptr<const MappedFile>> files() const { return files_; }
  void release(const Tensor& tensor) const;  // drops its resident pages: reading it again loads them again
  void check_intact() const;                 // throws Error{bad_file} when a file lost bytes while mapped

 private:
  std::string path_;
  std::vector<Tensor> tensors_;
  std::vector<uint32_t> by_name_;  // indices into tensors_, sorted by name
  std::vector<bool> used_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
};

}  // namespace kveval
