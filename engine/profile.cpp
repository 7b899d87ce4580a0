#include "engine/profile.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/kv/codec.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

// A range like 0-999999999 must not become a list of that length; the deepest models have some 130 layers.
constexpr int kMaxLayer = 1023;

template <class T>
struct Named {
  const char* name;
  T value;
};

constexpr std::array<Named<Format>, 6> kFormats{{{"f32", Format::f32},
                                                 {"fp16", Format::fp16},
                                                 {"bf16", Format::bf16},
                                                 {"e4m3", Format::e4m3},
                                                 {"e5m2", Format::e5m2},
                                                 {"int8", Format::int8}}};
constexpr std::array<Named<ScaleAxis>, 4> kAxes{{{"none", ScaleAxis::none},
                                                 {"tensor", ScaleAxis::tensor},
                                                 {"token-head", ScaleAxis::token_head},
                                                 {"checkpoint", ScaleAxis::checkpoint}}};
constexpr std::array<Named<CacheMode>, 2> kModes{
    {{"as-you-go", CacheMode::as_you_go}, {"transcode", CacheMode::transcode}}};

struct Preset {
  Format format;
  ScaleAxis scale;
};
constexpr std::array<Named<Preset>, 8> kPresets{{{"f32", {Format::f32, ScaleAxis::none}},
                                                 {"fp16", {Format::fp16, ScaleAxis::none}},
                                                 {"bf16", {Format::bf16, ScaleAxis::none}},
                                                 {"e4m3", {Format::e4m3, ScaleAxis::none}},
                                                 {"e5m2", {Format::e5m2, ScaleAxis::none}},
                                                 {"int8", {Format::int8, ScaleAxis::token_head}},
                                                 {"int8-tensor", {Format::int8, ScaleAxis::tensor}},
                                                 {"fp8", {Format::e4m3, ScaleAxis::none}}}};

template <class Table>
std::string names(const Table& table) {
  std::vector<std::string_view> list;
  list.reserve(table.size());
  for (const auto& entry : table) list.emplace_back(entry.name);
  return fmt::format("{}", fmt::join(list, ", "));
}

template <class T, size_t kSize>
const T* find(const std::array<Named<T>, kSize>& table, std::string_view name) {
  for (const auto& entry : table) {
    if (name == entry.name) return &entry.value;
  }
  return nullptr;
}

template <class T, size_t kSize>
const char* name_in(const std::array<Named<T>, kSize>& table, T value) {
  for (const auto& entry : table) {
    if (entry.value == value) return entry.name;
  }
  return "?";
}

constexpr std::string_view kItems = "k=, v=, scale=, k-scale=, v-scale=, skip-layers=, mode=";
constexpr const char* kExamples = "for example e4m3, or k=e4m3,v=fp16, or e4m3,skip-layers=0-1";

[[noreturn]] void fail(const std::string& message) { throw Error{ErrorKind::usage, message, kExamples}; }

bool is_8_bit(Format format) { return kv::code_bytes(format) == 1; }

ScaleAxis own_axis(Format format) { return format == Format::int8 ? ScaleAxis::token_head : ScaleAxis::none; }

// Why this part cannot exist, or an empty string.
std::string objection(const CachePart& part) {
  if (!is_8_bit(part.format) && part.scale != ScaleAxis::none) {
    return fmt::format("{} is stored without a scale; scales are for e4m3, e5m2 and int8",
                       name_of(part.format));
  }
  if (part.format == Format::int8 && part.scale == ScaleAxis::none) {
    return "int8 needs a scale; known: tensor, token-head";
  }
  if (part.format == Format::int8 && part.scale == ScaleAxis::checkpoint) {
    return "the scales of a checkpoint are for e4m3 and e5m2";
  }
  return {};
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

std::vector<std::string_view> split(std::string_view text, std::string_view what) {
  if (trimmed(text).empty()) fail(fmt::format("empty {}; known: {}", what, names(kPresets)));
  std::vector<std::string_view> items;
  std::string_view rest = text;
  for (;;) {
    const size_t comma = rest.find(',');
    items.push_back(trimmed(rest.substr(0, comma)));
    if (items.back().empty()) fail(fmt::format("empty item in {} '{}'", what, text));
    if (comma == std::string_view::npos) return items;
    rest.remove_prefix(comma + 1);
  }
}

bool begins_with_digit(std::string_view item) { return !item.empty() && item[0] >= '0' && item[0] <= '9'; }

// One profile's text while it is read.
class Reader {
 public:
  explicit Reader(std::span<const std::string_view> items) : text_(fmt::format("{}", fmt::join(items, ","))) {
    for (const std::string_view item : items) read(item);
  }

  Profile profile() const {
    if (!preset_ && !k_)
      fail(fmt::format("'{}' names no cache format for keys: begin with a preset or k=", text_));
    if (!preset_ && !v_) fail(fmt::format("'{}' names no cache format for values: add v=", text_));
    Profile profile;
    profile.k = part(k_, k_scale_, "k-scale=");
    profile.v = part(v_, v_scale_, "v-scale=");
    if (scale_.value_or(ScaleAxis::none) != ScaleAxis::none && !is_8_bit(profile.k.format) &&
        !is_8_bit(profile.v.format)) {
      fail(fmt::format("scale={} in profile '{}': {}", name_of(*scale_), text_,
                       objection({profile.k.format, *scale_, {}})));
    }
    profile.skip_layers.assign(skip_layers_.begin(), skip_layers_.end());
    profile.mode = mode_.value_or(CacheMode::as_you_go);
    return profile;
  }

 private:
  void read(std::string_view item) {
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      begins_with_digit(item) && in_layers_ ? read_layers(item) : read_preset(item);
      return;
    }
    const std::string_view key = item.substr(0, equals), value = item.substr(equals + 1);
    in_layers_ = false;
    if (key == "k") {
      set(k_, kFormats, "cache format", item, value);
    } else if (key == "v") {
      set(v_, kFormats, "cache format", item, value);
    } else if (key == "scale") {
      set(scale_, kAxes, "scale axis", item, value);
    } else if (key == "k-scale") {
      set(k_scale_, kAxes, "scale axis", item, value);
    } else if (key == "v-scale") {
      set(v_scale_, kAxes, "scale axis", item, value);
    } else if (key == "mode") {
      set(mode_, kModes, "mode", item, value);
    } else if (key == "skip-layers") {
      if (!skip_layers_.empty()) fail(fmt::format("skip-layers= stands twice in profile '{}'", text_));
      in_layers_ = true;
      read_layers(value);
    } else {
      fail(fmt::format("unknown item '{}=' in profile '{}'; known: {}", key, text_, kItems));
    }
  }

  void read_preset(std::string_view item) {
    if (begins_with_digit(item)) {
      fail(fmt::format("'{}' in profile '{}' follows no skip-layers=", item, text_));
    }
    const Preset* preset = find(kPresets, item);
    if (preset == nullptr) fail(fmt::format("unknown profile '{}'; known: {}", item, names(kPresets)));
    if (preset_ || k_ || v_)
      fail(fmt::format("'{}' names more than one profile where one is expected", text_));
    preset_ = *preset;
  }

  void read_layers(std::string_view range) {
    int first = -1, last = -1;
    const char* end = range.data() + range.size();
    auto parsed = std::from_chars(range.data(), end, first);
    last = first;
    if (parsed.ec == std::errc{} && parsed.ptr != end && *parsed.ptr == '-') {
      parsed = std::from_chars(parsed.ptr + 1, end, last);
    }
    if (parsed.ec != std::errc{} || parsed.ptr != end || first < 0 || last < first || last > kMaxLayer) {
      fail(fmt::format(
          "'{}' in skip-layers= of profile '{}' is no layer N or range N-M with 0 <= N <= M <= {}", range,
          text_, kMaxLayer));
    }
    for (int layer = first; layer <= last; layer++) skip_layers_.insert(layer);
  }

  template <class T, size_t kSize>
  void set(std::optional<T>& field, const std::array<Named<T>, kSize>& table, std::string_view what,
           std::string_view item, std::string_view value) {
    const T* known = find(table, value);
    if (known == nullptr)
      fail(fmt::format("unknown {} '{}' in '{}'; known: {}", what, value, item, names(table)));
    if (field) fail(fmt::format("'{}' sets twice what profile '{}' may set once", item, text_));
    field = *known;
  }

  CachePart part(std::optional<Format> format, std::optional<ScaleAxis> axis, std::string_view item) const {
    CachePart part;
    part.format = format ? *format : preset_->format;
    part.scale = format ? own_axis(*format) : preset_->scale;
    if (scale_ && is_8_bit(part.format)) part.scale = *scale_;
    if (axis) part.scale = *axis;
    if (const std::string why = objection(part); !why.empty()) {
      fail(fmt::format("{}{} in profile '{}': {}", axis ? item : "scale=", name_of(part.scale), text_, why));
    }
    return part;
  }

  std::string text_;
  std::optional<Preset> preset_;
  std::optional<Format> k_, v_;
  std::optional<ScaleAxis> scale_, k_scale_, v_scale_;
  std::optional<CacheMode> mode_;
  std::set<int> skip_layers_;
  bool in_layers_ = false;  // the last item was skip-layers= or one of its ranges
};

std::string scale_items(const CachePart& k, const CachePart& v) {
  const bool k_own = k.scale == own_axis(k.format), v_own = v.scale == own_axis(v.format);
  if (k_own && v_own) return {};
  const ScaleAxis axis = k_own ? v.scale : k.scale;
  const bool shared = (!is_8_bit(k.format) || k.scale == axis) && (!is_8_bit(v.format) || v.scale == axis);
  if (shared) return fmt::format(",scale={}", name_of(axis));
  std::string items;
  if (!k_own) items += fmt::format(",k-scale={}", name_of(k.scale));
  if (!v_own) items += fmt::format(",v-scale={}", name_of(v.scale));
  return items;
}

Json part_json(const CachePart& part) {
  return {{"format", name_of(part.format)},
          {"scale", name_of(part.scale)},
          {"static_scales", part.static_scales}};
}

[[noreturn]] void bad_json(const std::string& why) {
  throw Error{ErrorKind::bad_file, fmt::format("a stored cache profile cannot be read: {}", why),
              "it was written by another version of kveval, or edited"};
}

// Exactly these keys: one that this version does not know could change the bits.
void check_keys(const Json& object, std::initializer_list<std::string_view> keys) {
  if (!object.is_object()) bad_json("it is no JSON object");
  for (const std::string_view key : keys) {
    if (!object.contains(key)) bad_json(fmt::format("'{}' is missing", key));
  }
  for (const auto& [key, value] : object.items()) {
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      bad_json(fmt::format("unknown key '{}'", key));
  }
}

template <class T, size_t kSize>
T named_value(const Json& value, const std::array<Named<T>, kSize>& table) {
  const T* known = value.is_string() ? find(table, value.get_ref<const std::string&>()) : nullptr;
  if (known == nullptr) bad_json(fmt::format("unknown word {}; known: {}", value.dump(), names(table)));
  return *known;
}

CachePart part_from_json(const Json& json) {
  check_keys(json, {"format", "scale", "static_scales"});
  CachePart part;
  part.format = named_value(json["format"], kFormats);
  part.scale = named_value(json["scale"], kAxes);
  if (const std::string why = objection(part); !why.empty()) bad_json(why);
  if (!json["static_scales"].is_array()) bad_json("'static_scales' is no array");
  for (const Json& scale : json["static_scales"]) {
    const double number = scale.is_number() ? scale.get<double>() : 0;
    if (!(number > 0 && number <= double(std::numeric_limits<float>::max()))) {
      bad_json(fmt::format("the static scale {} is no positive number", scale.dump()));
    }
    part.static_scales.push_back(float(number));
  }
  if (!part.static_scales.empty() && !is_static(part.scale)) {
    bad_json(fmt::format("static scales under the scale axis '{}'", name_of(part.scale)));
  }
  return part;
}

}  // namespace

std::string layer_ranges(const std::vector<int>& layers) {
  std::vector<std::string> ranges;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && layers[end] == layers[end - 1] + 1) end++;
    ranges.push_back(end - i == 1 ? fmt::format("{}", layers[i])
                                  : fmt::format("{}-{}", layers[i], layers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(ranges, ","));
}

bool Profile::needs_resolve() const {
  const auto missing = [](const CachePart& part) {
    return is_static(part.scale) && part.static_scales.empty();
  };
  return missing(k) || missing(v);
}

Profile parse_profile(std::string_view text) { return Reader{split(text, "profile")}.profile(); }

std::vector<Profile> parse_profile_list(std::string_view text) {
  const std::vector<std::string_view> items = split(text, "list of profiles");
  std::vector<Profile> profiles;
  for (size_t begin = 0; begin < items.size();) {
    size_t end = begin + 1;
    const auto begins_profile = [](std::string_view item) {
      return item.starts_with("k=") || (item.find('=') == std::string_view::npos && !begins_with_digit(item));
    };
    while (end < items.size() && !begins_profile(items[end])) end++;
    profiles.push_back(Reader{std::span{items}.subspan(begin, end - begin)}.profile());
    begin = end;
  }
  return profiles;
}

std::string canonical(const Profile& profile) {
  const CachePart &k = profile.k, &v = profile.v;
  std::string text;
  if (k.format != v.format) {
    text = fmt::format("k={},v={}{}", name_of(k.format), name_of(v.format), scale_items(k, v));
  } else if (k.format == Format::int8 && k.scale == ScaleAxis::tensor && v.scale == ScaleAxis::tensor) {
    text = "int8-tensor";
  } else {
    text = name_of(k.format) + scale_items(k, v);
  }
  if (!profile.skip_layers.empty()) text += ",skip-layers=" + layer_ranges(profile.skip_layers);
  if (profile.mode != CacheMode::as_you_go) text += fmt::format(",mode={}", name_of(profile.mode));
  return text;
}

std::string to_json(const Profile& profile) {
  const Json json = {{"k", part_json(profile.k)},
                     {"v", part_json(profile.v)},
                     {"skip_layers", profile.skip_layers},
                     {"mode", name_of(profile.mode)}};
  return json.dump();
}

Profile profile_from_json(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) bad_json("it is no JSON");
  check_keys(json, {"k", "v", "skip_layers", "mode"});
  Profile profile;
  profile.k = part_from_json(json["k"]);
  profile.v = part_from_json(json["v"]);
  profile.mode = named_value(json["mode"], kModes);
  if (!json["skip_layers"].is_array()) bad_json("'skip_layers' is no array");
  for (const Json& layer : json["skip_layers"]) {
    const int previous = profile.skip_layers.empty() ? -1 : profile.skip_layers.back();
    if (!layer.is_number_integer() || layer.get<int64_t>() <= previous || layer.get<int64_t>() > kMaxLayer) {
      bad_json(fmt::format("'skip_layers' holds {} after {}", layer.dump(), previous));
    }
    profile.skip_layers.push_back(layer.get<int>());
  }
  return profile;
}

std::string profile_hash(const Profile& profile) { return hash_hex(to_json(profile)); }

const char* name_of(Format format) { return name_in(kFormats, format); }
const char* name_of(ScaleAxis axis) { return name_in(kAxes, axis); }
const char* name_of(CacheMode mode) { return name_in(kModes, mode); }

}  // namespace kveval
