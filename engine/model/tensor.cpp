#include "engine/model/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "engine/model/block_quants.h"
#include "engine/model/file_error.h"

namespace kveval {
namespace {

constexpr int64_t kLargestDimension = int64_t(1) << 31;

constexpr std::array<TypeInfo, kTensorTypes> kTypes = {{
    {"F32", 1, 4, 0, false},
    {"F16", 1, 2, 0, false},
    {"BF16", 1, 2, 0, false},
    {"Q4_0", 32, 18, 32, false},
    {"Q4_1", 32, 20, 32, true},
    {"Q5_0", 32, 22, 32, false},
    {"Q5_1", 32, 24, 32, true},
    {"Q8_0", 32, 34, 32, false},
    {"Q2_K", 256, 84, 16, true},
    {"Q3_K", 256, 110, 16, false},
    {"Q4_K", 256, 144, 32, true},
    {"Q5_K", 256, 176, 32, true},
    {"Q6_K", 256, 210, 16, false},
    {"IQ4_NL", 32, 18, 32, false},
}};

}  // namespace

const TypeInfo& info_of(TensorType type) { return kTypes[size_t(type)]; }

int64_t cols(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape.back(); }

int64_t rows(const Tensor& tensor) {
  int64_t product = 1;
  for (size_t i = 0; i + 1 < tensor.shape.size(); ++i) product *= tensor.shape[i];
  return product;
}

size_t row_bytes(const Tensor& tensor) {
  const TypeInfo& info = info_of(tensor.type);
  return size_t(cols(tensor)) / size_t(info.block_elements) * size_t(info.block_bytes);
}

std::optional<uint64_t> byte_size(TensorType type, std::span<const int64_t> shape) {
  const TypeInfo& info = info_of(type);
  int64_t bytes = info.block_bytes;
  for (size_t i = 0; i < shape.size(); ++i) {
    int64_t factor = shape[i];
    if (factor < 1 || factor > kLargestDimension) return std::nullopt;
    if (i + 1 == shape.size()) {
      if (factor % info.block_elements != 0) return std::nullopt;
      factor /= info.block_elements;
    }
    if (__builtin_mul_overflow(bytes, factor, &bytes)) return std::nullopt;
  }
  if (shape.empty() && info.block_elements != 1) return std::nullopt;
  return uint64_t(bytes);
}

void dequantize_row(const Tensor& tensor, int64_t row, float* out) {
  dequantize(tensor.type, tensor.data.data() + size_t(row) * row_bytes(tensor), size_t(cols(tensor)), out);
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

TensorSet::TensorSet(std::string path, std::vector<Tensor> tensors,
                     std::vector<std::shared_ptr<const MappedFile>> files)
    : path_(std::move(path)),
      tensors_(std::move(tensors)),
      by_name_(tensors_.size()),
      used_(tensors_.size()),
      files_(std::move(files)) {
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::ranges::sort(by_name_, {}, [this](uint32_t i) -> const std::string& { return tensors_[i].name; });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const Tensor& tensor = tensors_[by_name_[i]];
    if (tensor.name == tensors_[by_name_[i - 1]].name)
      throw file_error(path_, fmt::format("tensor {} occurs twice", quote(tensor.name)));
  }
}

const Tensor* TensorSet::peek(std::string_view name) const {
  const auto name_of = [this](uint32_t i) { return std::string_view(tensors_[i].name); };
  const auto at = std::ranges::lower_bound(by_name_, name, {}, name_of);
  return at != by_name_.end() && tensors_[*at].name == name ? &tensors_[*at] : nullptr;
}

const Tensor* TensorSet::find(std::string_view name) {
  const Tensor* const tensor = peek(name);
  if (tensor != nullptr) used_[size_t(tensor - tensors_.data())] = true;
  return tensor;
}

const Tensor& TensorSet::need(std::string_view name) {
  const Tensor* const tensor = find(name);
  if (tensor == nullptr) throw file_error(path_, fmt::format("tensor {} is missing", quote(name)));
  return *tensor;
}

const Tensor& TensorSet::need(std::string_view name, std::initializer_list<int64_t> shape) {
  const Tensor& tensor = need(name);
  if (!std::ranges::equal(tensor.shape, shape))
    throw file_error(path_, fmt::format("tensor {} is {} where the configuration needs {}", quote(name),
                                        shape_text(tensor.shape), shape_text({shape.begin(), shape.end()})));
  return tensor;
}

std::vector<std::string_view> TensorSet::unused() const {
  std::vector<std::string_view> names;
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!used_[i]) names.emplace_back(tensors_[i].name);
  return names;
}

void TensorSet::release(const Tensor& tensor) const {
  for (const auto& file : files_) file->release(tensor.data);  // each ignores what is not its own
}

void TensorSet::check_intact() const {
  for (const auto& file : files_) file->check_intact();
}

}  // namespace kveval
