#include "engine/model/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "engine/model/file_error.h"

namespace kveval {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTextBytes = 1 << 16;
constexpr size_t kMaxTensors = 1 << 16;
constexpr size_t kMaxMetadata = 4096;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kMaxShards = 1024;
constexpr size_t kDeepest = 64;
// "a":{"dtype":"F16","shape":[],"data_offsets":[0,2]}
constexpr size_t kSmallestEntryBytes = 51;

// What the parser would let pass. It takes a NUL for the end of its input, whatever follows; and it keeps the
// text it is in, growing by doubling, so that a header that is one text would cost six times its size.
void check_text(const std::string& path, std::string_view json) {
  if (const size_t nul = json.find('\0'); nul != std::string_view::npos)
    throw file_error(path, fmt::format("has malformed JSON at byte {} (a NUL)", nul));
  bool inside = false;
  size_t begin = 0;
  for (size_t i = 0; i < json.size(); ++i) {
    if (inside && json[i] == '\\') {
      ++i;
    } else if (json[i] == '"') {
      inside = !inside;
      begin = i + 1;
    }
    if (inside && i >= begin + kMaxTextBytes)
      throw file_error(path, fmt::format("has a text of more than {} bytes at {}", kMaxTextBytes, begin));
  }
}

// Parser events that neither file has: a handler below derives from this and defines what it accepts.
struct RefuseAll {
  const std::string& path;

  Error unexpected(const std::string& what) const { return file_error(path, "has " + what); }
  Error out_of_place(std::string_view what) const { return unexpected(fmt::format("{} out of place", what)); }

  bool null() { throw out_of_place("a null"); }
  bool boolean(bool) { throw out_of_place("a boolean"); }
  bool number_integer(int64_t) { throw out_of_place("a negative number"); }
  bool number_unsigned(uint64_t) { throw out_of_place("a number"); }
  bool number_float(double, const std::string&) { throw out_of_place("a number that is no integer"); }
  bool string(std::string&) { throw out_of_place("a text"); }
  bool binary(nlohmann::json::binary_t&) { throw out_of_place("a binary value"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    throw unexpected(fmt::format("malformed JSON at byte {}", position));
  }
};

template <class Handler>
void read_json(const std::string& path, std::string_view json, Handler& handler) {
  check_text(path, json);
  nlohmann::json::sax_parse(json.begin(), json.end(), &handler);
}

struct Place {
  uint64_t begin, end;  // in the data section
  uint32_t index;       // of its tensor
};

struct Dtype {
  std::string_view name;
  TensorType type;
};
constexpr Dtype kWeightDtypes[] = {
    {"F32", TensorType::f32}, {"F16", TensorType::f16}, {"BF16", TensorType::bf16}};
constexpr std::string_view kOtherDtypes[] = {
    "BOOL", "U8",  "I8",  "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "I16",    "U16",
    "I32",  "U32", "C64", "F64",     "I64",     "U64",     "F4",          "F6_E2M3",     "F6_E3M2"};

// {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}, ..., "__metadata__": {"text": "text",
// ...}}
class HeaderHandler : public RefuseAll {
 public:
  HeaderHandler(const std::string& file_path, std::vector<Tensor>& tensors, std::vector<Place>& places)
      : RefuseAll{file_path}, tensors_(tensors), places_(places) {}

  bool start_object(size_t) {
    switch (at_) {
      case At::begin: at_ = At::top; return true;
      case At::metadata_value: at_ = At::metadata; return true;
      case At::entry_value: at_ = At::entry; return true;
      default: throw field_error("an object out of place");
    }
  }

  bool key(std::string& name) {
    switch (at_) {
      case At::top: top_key(name); return true;
      case At::metadata: metadata_key(name); return true;
      default: entry_key(name); return true;
    }
  }

  bool string(std::string& text) {
    if (at_ == At::metadata_text)
      at_ = At::metadata;
    else if (at_ == At::dtype)
      dtype(text);
    else
      throw field_error("a text out of place");
    return true;
  }

  bool start_array(size_t) {
    if (at_ == At::shape_value)
      at_ = At::shape;
    else if (at_ == At::offsets_value)
      at_ = At::offsets;
    else
      throw field_error("an array out of place");
    return true;
  }

  bool number_unsigned(uint64_t value) {
    if (at_ == At::shape) {
      if (tensor().shape.size() == kMaxDimensions)
        throw field_error(fmt::format("more than {} dimensions", kMaxDimensions));
      if (value < 1 || value > uint64_t(1) << 31)
        throw field_error(fmt::format("a dimension of {}, outside 1 to 2^31", value));
      tensor().shape.push_back(int64_t(value));
    } else if (at_ == At::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? places_.back().begin : places_.back().end) = value;
    } else {
      throw field_error(at_ == At::offsets ? "more than two data_offsets" : "a number out of place");
    }
    return true;
  }
  bool number_integer(int64_t value) { throw field_error(fmt::format("the number {}", value)); }
  bool number_float(double, const std::string& text) {
    throw field_error(fmt::format("{}, which is no 64-bit integer,", text.substr(0, 40)));
  }
  bool null() { throw field_error("a null out of place"); }
  bool boolean(bool) { throw field_error("a boolean out of place"); }

  bool end_array() {
    if (at_ == At::offsets && offsets_ != 2) throw field_error("less than two data_offsets");
    at_ = At::entry;
    return true;
  }

  bool end_object() {
    if (at_ == At::entry) finish_entry();
    at_ = at_ == At::top ? At::end : At::top;
    return true;
  }

 private:
  enum class At {
    begin,
    top,
    metadata_value,
    metadata,
    metadata_text,
    entry_value,
    entry,
    dtype,
    shape_value,
    shape,
    offsets_value,
    offsets,
    end
  };
  enum Field : unsigned { kDtype = 1, kShape = 2, kOffsets = 4 };

  Tensor& tensor() { return tensors_.back(); }

  Error field_error(const std::string& what) const {
    switch (at_) {
      case At::begin:
      case At::top:
      case At::end: return unexpected(what + " at the top of its header");
      case At::metadata_value:
      case At::metadata:
      case At::metadata_text: return unexpected(what + " in '__metadata__'");
      default:
        return unexpected(fmt::format("{} in the entry of tensor {}", what, quote(tensors_.back().name)));
    }
  }

  void top_key(std::string& name) {
    if (name == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) throw unexpected("'__metadata__' twice");
      at_ = At::metadata_value;
      return;
    }
    if (name.empty() || has_control_characters(name))
      throw unexpected(
          fmt::format("a tensor whose name is empty or has control characters: {}", quote(name)));
    if (places_.size() == kMaxTensors) throw unexpected(fmt::format("more than {} tensors", kMaxTensors));
    places_.push_back({0, 0, uint32_t(tensors_.size())});
    tensors_.emplace_back().name = std::move(name);
    fields_ = 0;
    offsets_ = 0;
    at_ = At::entry_value;
  }

  void metadata_key(const std::string& name) {
    if (!metadata_keys_.insert(name).second) throw field_error(fmt::format("key {} twice", quote(name)));
    if (metadata_keys_.size() > kMaxMetadata)
      throw field_error(fmt::format("more than {} keys", kMaxMetadata));
    at_ = At::metadata_text;
  }

  void entry_key(const std::string& name) {
    unsigned field = 0;
    if (name == "dtype") {
      field = kDtype;
      at_ = At::dtype;
    } else if (name == "shape") {
      field = kShape;
      at_ = At::shape_value;
    } else if (name == "data_offsets") {
      field = kOffsets;
      at_ = At::offsets_value;
    } else {
      throw field_error(fmt::format("the unknown key {}", quote(name)));
    }
    if ((fields_ & field) != 0) throw field_error(fmt::format("key {} twice", quote(name)));
    fields_ |= field;
  }

  void dtype(const std::string& name) {
    const auto* const known = std::ranges::find(kWeightDtypes, name, &Dtype::name);
    if (known == std::end(kWeightDtypes)) {
      const bool recognised = std::ranges::find(kOtherDtypes, name) != std::end(kOtherDtypes);
      throw file_error(
          path,
          fmt::format("tensor {} has {} dtype {}{}", quote(tensor().name), recognised ? "the" : "an unknown",
                      quote(name), recognised ? ", which kveval does not read" : ""),
          "use a checkpoint in BF16, F16 or F32");
    }
    tensor().type = known->type;
    at_ = At::entry;
  }

  void finish_entry() {
    if (fields_ != (kDtype | kShape | kOffsets))
      throw file_error(path, fmt::format("tensor {} lacks its {}", quote(tensor().name),
                                         (fields_ & kDtype) == 0   ? "dtype"
                                         : (fields_ & kShape) == 0 ? "shape"
                                                                   : "data_offsets"));
  }

  std::vector<Tensor>& tensors_;
  std::vector<Place>& places_;
  At at_ = At::begin;
  unsigned fields_ = 0;   // of the entry it is in
  unsigned offsets_ = 0;  // how many of its data_offsets were read
  bool metadata_seen_ = false;
  std::set<std::string> metadata_keys_;
};

// The places must follow one another from 0 to the end of the file, each as long as its tensor.
void assign_data(const MappedFile& file, uint64_t data_begin, std::vector<Place>& places,
                 std::span<Tensor> tensors) {
  std::ranges::sort(places, {}, &Place::begin);
  const uint64_t data_size = file.bytes().size() - data_begin;
  uint64_t end = 0;
  for (const Place& place : places) {
    Tensor& tensor = tensors[place.index];
    const std::optional<uint64_t> size = byte_size(tensor.type, tensor.shape);
    if (!size || place.end < place.begin || place.end - place.begin != *size)
      throw file_error(file.path(), fmt::format("tensor {} has data_offsets [{}, {}], which do not fit {} {}",
                                                quote(tensor.name), place.begin, place.end,
                                                info_of(tensor.type).name, shape_text(tensor.shape)));
    if (place.begin != end)
      throw file_error(file.path(), fmt::format("tensor {} begins at {} where the data before it ends at {}",
                                                quote(tensor.name), place.begin, end));
    if (place.end > data_size)
      throw file_error(file.path(),
                       fmt::format("tensor {} ends at {}, past the file's {} bytes of data",
                                   quote(tensor.name), place.end, data_size),
                       "the file may be cut short: fetch it again");
    end = place.end;
    tensor.data = file.bytes().subspan(data_begin + place.begin, *size);
  }
  if (end != data_size)
    throw file_error(file.path(), fmt::format("has {} bytes of data, its tensors {}", data_size, end));
}

void read_mapped(const std::shared_ptr<const MappedFile>& file, std::vector<Tensor>& tensors) {
  const std::span<const std::byte> bytes = file->bytes();
  uint64_t header = 0;
  if (bytes.size() < sizeof header) throw file_error(file->path(), "is too short for a safetensors file");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header > kMaxHeaderBytes || header > bytes.size() - sizeof header)
    throw file_error(file->path(),
                     fmt::format("has a header length of {}, more than the file or the limit of {}", header,
                                 kMaxHeaderBytes));
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + sizeof header, header);
  if (!json.starts_with('{')) throw file_error(file->path(), "has a header that is no JSON object");

  const size_t first = tensors.size();
  const size_t most = std::min(kMaxTensors, json.size() / kSmallestEntryBytes);
  tensors.reserve(first + most);
  std::vector<Place> places;
  places.reserve(most);
  HeaderHandler handler(file->path(), tensors, places);
  read_json(file->path(), json, handler);
  assign_data(*file, sizeof header + header, places, tensors);
  for (size_t i = first; i < tensors.size(); ++i) tensors[i].owner = file;
}

std::shared_ptr<const MappedFile> read_file(const std::string& path, std::vector<Tensor>& tensors) {
  std::shared_ptr<const MappedFile> file = MappedFile::open(path);
  read_intact(*file, [&] { read_mapped(file, tensors); });
  return file;
}

// {"metadata": anything, "weight_map": {"tensor": "file", ...}}
class IndexHandler : public RefuseAll {
 public:
  using Listed = std::function<void(const std::string& tensor, const std::string& file)>;
  IndexHandler(const std::string& file_path, Listed listed)
      : RefuseAll{file_path}, listed_(std::move(listed)) {}

  bool seen() const { return map_seen_; }

  bool start_object(size_t) { return deeper(); }
  bool start_array(size_t) {
    if (depth_ == 0 || in_map()) throw out_of_place("an array");
    return deeper();
  }
  bool end_object() { return shallower(); }
  bool end_array() { return shallower(); }

  bool key(std::string& name) {
    if (depth_ == 1) {
      map_value_ = name == "weight_map";
      if (map_value_ && std::exchange(map_seen_, true)) throw unexpected("'weight_map' twice");
    } else if (in_map()) {
      tensor_ = std::move(name);
    }
    return true;
  }
  bool string(std::string& text) {
    if (in_map()) {
      if (depth_ != 2) throw out_of_place("a text");
      listed_(tensor_, text);
    }
    return true;
  }
  bool null() { return scalar("a null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(int64_t) { return scalar("a number"); }
  bool number_unsigned(uint64_t) { return scalar("a number"); }
  bool number_float(double, const std::string&) { return scalar("a number"); }

 private:
  bool in_map() const { return depth_ >= 1 && map_value_; }
  bool scalar(std::string_view what) {
    if (depth_ == 0 || in_map()) throw out_of_place(what);
    return true;
  }
  bool deeper() {
    if (in_map() && depth_ == 2) throw out_of_place("an object");
    if (++depth_ > kDeepest) throw unexpected(fmt::format("values nested deeper than {}", kDeepest));
    return true;
  }
  bool shallower() {
    if (--depth_ == 1) map_value_ = false;
    return true;
  }

  Listed listed_;
  size_t depth_ = 0;
  bool map_value_ = false, map_seen_ = false;
  std::string tensor_;
};

void check_shard_name(const std::string& index_path, const std::string& name) {
  const bool is_plain = !has_control_characters(name) && name.find_first_of("/\\") == std::string::npos &&
                        name.find("..") == std::string::npos;
  if (!is_plain || !name.ends_with(".safetensors"))
    throw file_error(index_path,
                     fmt::format("lists {}, which is no plain name of a .safetensors file", quote(name)));
}

// `path` is what the caller named: the folder, or the index itself.
TensorSet read_index(const std::string& path, const std::string& index_path) {
  const std::shared_ptr<const MappedFile> index = MappedFile::open(index_path);
  if (index->bytes().size() > kMaxHeaderBytes)
    throw file_error(index_path, fmt::format("is longer than the limit of {} bytes", kMaxHeaderBytes));
  const std::string_view json(reinterpret_cast<const char*>(index->bytes().data()), index->bytes().size());

  // Two passes over the index, so that its entries never stand in memory: the files first, then each tensor's
  // file.
  std::map<std::string, std::shared_ptr<const MappedFile>> shards;
  IndexHandler names(index_path, [&](const std::string&, const std::string& name) {
    if (shards.contains(name)) return;
    check_shard_name(index_path, name);
    if (shards.size() == kMaxShards)
      throw file_error(index_path, fmt::format("lists more than {} files", kMaxShards));
    shards.emplace(name, nullptr);
  });
  read_json(index_path, json, names);
  if (!names.seen()) throw file_error(index_path, "has no 'weight_map'");

  std::vector<Tensor> tensors;
  std::vector<std::shared_ptr<const MappedFile>> files;
  const std::filesystem::path folder = std::filesystem::path(index_path).parent_path();
  for (auto& [name, file] : shards) {
    file = read_file((folder / name).string(), tensors);
    if (tensors.size() > kMaxTensors)
      throw file_error(index_path, fmt::format("has more than {} tensors", kMaxTensors));
    files.push_back(file);
  }
  TensorSet set(path, std::move(tensors), std::move(files));

  std::vector<bool> listed(set.all().size());
  IndexHandler places(index_path, [&](const std::string& name, const std::string& file) {
    const Tensor* const tensor = set.peek(name);
    if (tensor == nullptr || tensor->owner != shards.at(file))
      throw file_error(
          index_path, fmt::format("lists tensor {} in {}, which does not hold it", quote(name), quote(file)));
    const auto i = size_t(tensor - set.all().data());
    if (listed[i]) throw file_error(index_path, fmt::format("lists tensor {} twice", quote(name)));
    listed[i] = true;
  });
  read_json(index_path, json, places);
  for (size_t i = 0; i < listed.size(); ++i)
    if (!listed[i])
      throw file_error(index_path,
                       fmt::format("does not list tensor {} of its files", quote(set.all()[i].name)));
  index->check_intact();
  return set;
}

}  // namespace

TensorSet read_safetensors(const std::string& path) {
  std::string file = path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    const std::filesystem::path folder(path);
    file = (folder / "model.safetensors").string();
    if (!std::filesystem::exists(file, ignored)) file += ".index.json";
    if (!std::filesystem::exists(file, ignored))
      throw file_error(path, "has neither model.safetensors nor model.safetensors.index.json");
  }
  if (file.ends_with(".json")) return read_index(path, file);
  std::vector<Tensor> tensors;
  std::vector<std::shared_ptr<const MappedFile>> files{read_file(file, tensors)};
  return TensorSet(path, std::move(tensors), std::move(files));
}

}  // namespace kveval
