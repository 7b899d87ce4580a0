#include "engine/model/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "engine/model/file_error.h"

namespace kveval {
namespace {

using Entry = GgufMetadata::Entry;

// What the smallest possible entry of each table takes in the file: a count that cannot fit is refused before
// anything is allocated for it.
constexpr uint64_t kSmallestKeyBytes = 8 + 1 + 4 + 1;             // key, type, value
constexpr uint64_t kSmallestTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dimensions, one, type, offset
constexpr uint64_t kGgufValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: not of one size

struct FileType {
  uint32_t id;
  TensorType type;
};
constexpr std::array<FileType, kTensorTypes> kTensorTypeIds = {{
    {0, TensorType::f32},
    {1, TensorType::f16},
    {2, TensorType::q4_0},
    {3, TensorType::q4_1},
    {6, TensorType::q5_0},
    {7, TensorType::q5_1},
    {8, TensorType::q8_0},
    {10, TensorType::q2_k},
    {11, TensorType::q3_k},
    {12, TensorType::q4_k},
    {13, TensorType::q5_k},
    {14, TensorType::q6_k},
    {20, TensorType::iq4_nl},
    {30, TensorType::bf16},
}};

// Types that files use and kveval does not read, for the message alone.
struct OtherType {
  uint32_t id;
  std::string_view name;
};
constexpr OtherType kOtherTypes[] = {
    {9, "Q8_1"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},
    {21, "IQ3_S"}, {22, "IQ2_S"}, {23, "IQ4_XS"},  {24, "I8"},     {25, "I16"},     {26, "I32"},
    {27, "I64"},   {28, "F64"},   {29, "IQ1_M"},   {34, "TQ1_0"},  {35, "TQ2_0"},   {39, "MXFP4"},
};

// Walks a mapped file; every step is checked against what remains. `what` gives the field's name for the
// message and is called only then.
class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : file_(file), bytes_(file.bytes()) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <class What>
  const std::byte* take(uint64_t count, const What& what) {
    if (count > remaining())
      throw file_error(file_.path(), fmt::format("{} needs {} bytes at {}, where {} remain", what(), count,
                                                 position_, remaining()));
    const std::byte* const at = bytes_.data() + position_;
    position_ += count;
    return at;
  }

  template <class T, class What>
  T number(const What& what) {
    T value;
    std::memcpy(&value, take(sizeof value, what), sizeof value);
    return value;
  }

  template <class What>
  std::string_view text(uint64_t longest, const What& what) {
    const auto length = number<uint64_t>(what);
    if (length > longest)
      throw file_error(file_.path(), fmt::format("{} is {} bytes long, more than the limit of {}", what(),
                                                 length, longest));
    return {reinterpret_cast<const char*>(take(length, what)), length};
  }

 private:
  const MappedFile& file_;
  std::span<const std::byte> bytes_;
  uint64_t position_ = 0;
};

// One file of a model. Member functions read its sections in file order.
class Part {
 public:
  explicit Part(const std::string& path) : file_(MappedFile::open(path)), cursor_(*file_) {}

  void read(std::vector<Tensor>& tensors) {
    read_intact(*file_, [&] {
      read_counts();
      read_entries();
      read_alignment();
      read_tensors(tensors);
    });
  }

  const std::shared_ptr<const MappedFile>& file() const { return file_; }
  GgufMetadata take_metadata() { return GgufMetadata(file_, std::move(entries_)); }

 private:
  Error error(const std::string& what, std::string hint = {}) const {
    return file_error(file_->path(), what, std::move(hint));
  }

  void read_counts();
  void read_entries();
  void read_entry(uint64_t index);
  void read_value(Entry& entry);
  void read_array(Entry& entry);
  void check_booleans(const Entry& entry) const;
  void read_alignment();
  void read_tensors(std::vector<Tensor>& tensors);
  uint64_t read_tensor(uint64_t index, Tensor& tensor);
  TensorType tensor_type(uint32_t id, const Tensor& tensor) const;

  std::shared_ptr<const MappedFile> file_;
  Cursor cursor_;
  uint64_t tensor_count_ = 0, entry_count_ = 0, alignment_ = 32;
  std::vector<Entry> entries_;
};

void Part::read_counts() {
  const auto header = [] { return std::string("the header"); };
  if (std::memcmp(cursor_.take(4, header), "GGUF", 4) != 0)
    throw error("does not begin with GGUF: not a GGUF file",
                "name a GGUF file, or the directory of a Hugging Face checkpoint, not a file in it");
  const auto version = cursor_.number<uint32_t>(header);
  if (version == 0x02000000 || version == 0x03000000)
    throw error("is big-endian GGUF, which kveval does not read");
  if (version != 2 && version != 3)
    throw error(fmt::format("is GGUF version {}, kveval reads versions 2 and 3", version));
  tensor_count_ = cursor_.number<uint64_t>(header);
  entry_count_ = cursor_.number<uint64_t>(header);
  if (tensor_count_ > kGgufMaxTensors || tensor_count_ > cursor_.remaining() / kSmallestTensorBytes)
    throw error(fmt::format("tensor count {} is more than the file can hold or kveval reads ({})",
                            tensor_count_, kGgufMaxTensors));
  if (entry_count_ > kGgufMaxKeys || entry_count_ > cursor_.remaining() / kSmallestKeyBytes)
    throw error(fmt::format("key count {} is more than the file can hold or kveval reads ({})", entry_count_,
                            kGgufMaxKeys));
}

void Part::read_entries() {
  entries_.reserve(entry_count_);
  for (uint64_t i = 0; i < entry_count_; ++i) {
    read_entry(i);
    if (cursor_.position() > kGgufMaxHeaderBytes)
      throw error(fmt::format("the metadata is longer than the limit of {} bytes", kGgufMaxHeaderBytes));
  }
  std::ranges::sort(entries_, {}, &Entry::key);
  const auto twice = std::ranges::adjacent_find(entries_, {}, &Entry::key);
  if (twice != entries_.end()) throw error(fmt::format("key {} occurs twice", quote(twice->key)));
}

void Part::read_entry(uint64_t index) {
  Entry entry{};
  entry.key = cursor_.text(kGgufMaxKeyBytes, [&] { return fmt::format("the name of key {}", index); });
  if (entry.key.empty() || has_control_characters(entry.key))
    throw error(
        fmt::format("the name of key {} is empty or has control characters: {}", index, quote(entry.key)));
  const auto type =
      cursor_.number<uint32_t>([&] { return fmt::format("the type of key {}", quote(entry.key)); });
  if (type >= std::size(kGgufValueBytes))
    throw error(fmt::format("key {} has unknown type {}", quote(entry.key), type));
  entry.type = GgufValue(type);
  entry.count = 1;
  read_value(entry);
  entries_.push_back(entry);
}

void Part::read_value(Entry& entry) {
  const auto value = [&] { return fmt::format("the value of key {}", quote(entry.key)); };
  if (entry.type == GgufValue::array) return read_array(entry);
  if (entry.type == GgufValue::text) {
    const std::string_view text = cursor_.text(kGgufMaxTextBytes, value);
    entry.value = reinterpret_cast<const std::byte*>(text.data());
    entry.count = text.size();
    return;
  }
  entry.value = cursor_.take(kGgufValueBytes[size_t(entry.type)], value);
  if (entry.type == GgufValue::boolean) check_booleans(entry);
}

void Part::read_array(Entry& entry) {
  const auto what = [&] { return fmt::format("the array of key {}", quote(entry.key)); };
  const auto element = cursor_.number<uint32_t>(what);
  if (element == uint32_t(GgufValue::array))
    throw error(fmt::format("key {} is an array of arrays", quote(entry.key)));
  if (element >= std::size(kGgufValueBytes))
    throw error(fmt::format("key {} is an array of unknown type {}", quote(entry.key), element));
  entry.element = GgufValue(element);
  entry.count = cursor_.number<uint64_t>(what);
  const bool is_text = entry.element == GgufValue::text;
  const uint64_t smallest = is_text ? sizeof(uint64_t) : kGgufValueBytes[element];
  if (entry.count > kGgufMaxArrayElements || entry.count > cursor_.remaining() / smallest)
    throw error(fmt::format("{} has {} elements, more than the file can hold or kveval reads ({})", what(),
                            entry.count, kGgufMaxArrayElements));
  if (!is_text) {
    entry.value = cursor_.take(entry.count * smallest, what);
    if (entry.element == GgufValue::boolean) check_booleans(entry);
    return;
  }
  entry.value = cursor_.take(0, what);
  for (uint64_t i = 0; i < entry.count; ++i)
    cursor_.text(kGgufMaxTextBytes, [&] { return fmt::format("element {} of key {}", i, quote(entry.key)); });
}

void Part::check_booleans(const Entry& entry) const {
  for (uint64_t i = 0; i < entry.count; ++i)
    if (entry.value[i] > std::byte(1))
      throw error(fmt::format("key {} has a boolean of value {}", quote(entry.key), int(entry.value[i])));
}

void Part::read_alignment() {
  const auto at = std::ranges::lower_bound(entries_, std::string_view("general.alignment"), {}, &Entry::key);
  if (at == entries_.end() || at->key != "general.alignment") return;
  if (at->type != GgufValue::u32) throw error("key 'general.alignment' is not an unsigned 32-bit integer");
  uint32_t value = 0;
  std::memcpy(&value, at->value, sizeof value);
  alignment_ = value;
  if (!std::has_single_bit(alignment_) || alignment_ < kGgufMinAlignment || alignment_ > kGgufMaxAlignment)
    throw error(fmt::format("key 'general.alignment' is {}, not a power of two from {} to {}", alignment_,
                            kGgufMinAlignment, kGgufMaxAlignment));
}

TensorType Part::tensor_type(uint32_t id, const Tensor& tensor) const {
  const auto known = std::ranges::find(kTensorTypeIds, id, &FileType::id);
  if (known != kTensorTypeIds.end()) return known->type;
  const auto other = std::ranges::find(kOtherTypes, id, &OtherType::id);
  throw error(
      other == std::end(kOtherTypes)
          ? fmt::format("tensor {} has unknown type {}", quote(tensor.name), id)
          : fmt::format("tensor {} has type {}, which kveval does not read", quote(tensor.name), other->name),
      "use a checkpoint in F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to Q6_K or IQ4_NL");
}

// Returns the tensor's offset in the data section.
uint64_t Part::read_tensor(uint64_t index, Tensor& tensor) {
  tensor.name = cursor_.text(kGgufMaxTensorName, [&] { return fmt::format("the name of tensor {}", index); });
  if (tensor.name.empty() || has_control_characters(tensor.name))
    throw error(fmt::format("the name of tensor {} is empty or has control characters: {}", index,
                            quote(tensor.name)));
  const auto what = [&] { return fmt::format("tensor {}", quote(tensor.name)); };
  const auto dimensions = cursor_.number<uint32_t>(what);
  if (dimensions < 1 || dimensions > kGgufMaxDimensions)
    throw error(
        fmt::format("{} has {} dimensions, 1 to {} are possible", what(), dimensions, kGgufMaxDimensions));
  tensor.shape.resize(dimensions);
  for (size_t i = 0; i < dimensions; ++i) tensor.shape[dimensions - 1 - i] = cursor_.number<int64_t>(what);
  tensor.type = tensor_type(cursor_.number<uint32_t>(what), tensor);
  return cursor_.number<uint64_t>(what);
}

void Part::read_tensors(std::vector<Tensor>& tensors) {
  struct Place {
    uint64_t offset;
    uint32_t index;  // in `tensors`
  };
  const size_t first = tensors.size();
  tensors.resize(first + tensor_count_);
  std::vector<Place> places(tensor_count_);
  for (uint64_t i = 0; i < tensor_count_; ++i)
    places[i] = {read_tensor(i, tensors[first + i]), uint32_t(first + i)};
  if (cursor_.position() > kGgufMaxHeaderBytes)
    throw error(fmt::format("the header is longer than the limit of {} bytes", kGgufMaxHeaderBytes));

  const uint64_t file_size = file_->bytes().size();
  const uint64_t data_begin = (cursor_.position() + alignment_ - 1) & ~(alignment_ - 1);
  const uint64_t data_size = data_begin < file_size ? file_size - data_begin : 0;
  std::ranges::sort(places, {}, &Place::offset);
  uint64_t end = 0;  // of the tensors so far
  for (size_t i = 0; i < places.size(); ++i) {
    Tensor& tensor = tensors[places[i].index];
    const uint64_t offset = places[i].offset;
    const std::optional<uint64_t> size = byte_size(tensor.type, tensor.shape);
    if (!size)
      throw error(fmt::format("tensor {} of type {} has the impossible shape {}", quote(tensor.name),
                              info_of(tensor.type).name, shape_text(tensor.shape)));
    if (offset % alignment_ != 0)
      throw error(fmt::format("tensor {} begins at {}, no multiple of the alignment {}", quote(tensor.name),
                              offset, alignment_));
    if (*size > data_size || offset > data_size - *size)
      throw error(
          fmt::format("tensor {} ({} bytes at {}) reaches past the end of the file's {} bytes of data",
                      quote(tensor.name), *size, offset, data_size),
          "the file may be cut short: fetch it again");
    if (offset < end)
      throw error(fmt::format("tensors {} and {} overlap", quote(tensors[places[i - 1].index].name),
                              quote(tensor.name)));
    end = offset + *size;
    tensor.data = file_->bytes().subspan(data_begin + offset, *size);
    tensor.owner = file_;
  }
}

std::string split_suffix(uint64_t number, uint64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

// The rest of a split model: tensors only, apart from what says which part it is.
void read_other_parts(const std::string& first_path, uint64_t count, std::vector<Tensor>& tensors,
                      std::vector<std::shared_ptr<const MappedFile>>& files) {
  const std::string suffix = split_suffix(1, count);
  if (!first_path.ends_with(suffix))
    throw file_error(first_path,
                     fmt::format("is the first of {} files, but its name does not end in {}", count, suffix),
                     "give the files their original names");
  const std::string stem = first_path.substr(0, first_path.size() - suffix.size());
  for (uint64_t number = 2; number <= count; ++number) {
    Part part(stem + split_suffix(number, count));
    part.read(tensors);
    GgufMetadata metadata = part.take_metadata();
    if (metadata.need_count("split.count", kGgufMaxSplits) != count ||
        metadata.need_count("split.no", kGgufMaxSplits) != number - 1)
      throw file_error(
          metadata.path(),
          fmt::format("is not file {} of {} by its keys 'split.no' and 'split.count'", number, count));
    for (const std::string_view key : metadata.keys())
      if (!key.starts_with("split.") && !key.starts_with("general."))
        throw file_error(metadata.path(), fmt::format("key {} belongs in the first file", quote(key)));
    files.push_back(part.file());
  }
}

}  // namespace

Gguf read_gguf(const std::string& path) {
  std::vector<Tensor> tensors;
  std::vector<std::shared_ptr<const MappedFile>> files;
  Part part(path);
  part.read(tensors);
  files.push_back(part.file());
  GgufMetadata metadata = part.take_metadata();

  const uint64_t number = metadata.count("split.no", kGgufMaxSplits).value_or(0);
  const uint64_t count = metadata.count("split.count", kGgufMaxSplits).value_or(1);
  if (number != 0)
    throw file_error(path, fmt::format("is file {} of a model split into {}", number + 1, count),
                     fmt::format("name the first one (...{})", split_suffix(1, count)));
  if (count > 1) read_other_parts(path, count, tensors, files);
  const std::optional<uint64_t> total = metadata.count("split.tensors.count", kGgufMaxTensors);
  if (total && *total != tensors.size())
    throw file_error(path, fmt::format("key 'split.tensors.count' is {}, the files hold {} tensors", *total,
                                       tensors.size()));
  if (tensors.size() > kGgufMaxTensors)
    throw file_error(
        path, fmt::format("{} tensors are more than kveval reads ({})", tensors.size(), kGgufMaxTensors));
  return {std::move(metadata), TensorSet(path, std::move(tensors), std::move(files))};
}

}  // namespace kveval
