// Profile: everything that defines a cache backend. Two profiles that could give different bits have
// different hashes (and, once the measured static scales are set aside, different canonical() texts); equal
// ones have equal ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kveval {

enum class Format : uint8_t { f32, fp16, bf16, e4m3, e5m2, int8 };

enum class ScaleAxis : uint8_t {
  none,        // codes are the values
  tensor,      // one static float32 per layer and part, measured by Engine::resolve, then frozen
  token_head,  // one float32 per token and KV head, absmax / largest code, computed on write
  checkpoint,  // as tensor, but the model's files bring the scales; e4m3 and e5m2 only
};
// Whether scales are fixed before a run: CachePart::static_scales.
constexpr bool is_static(ScaleAxis axis) {
  return axis == ScaleAxis::tensor || axis == ScaleAxis::checkpoint;
}

enum class CacheMode : uint8_t {
  as_you_go,  // prefill already reads quantized keys and values: what a server does
  transcode,  // one 16-bit prefill, re-encoded once behind the prefix: isolates the read error, one prefill
              // for all
};

// Keys or values.
struct CachePart {
  Format format = Format::fp16;
  ScaleAxis scale = ScaleAxis::none;
  std::vector<float> static_scales;  // [layers] once resolved; empty before and for the other axes
  bool operator==(const CachePart&) const = default;
};

struct Profile {
  CachePart k, v;
  std::vector<int> skip_layers;  // sorted, unique: these layers stay in 16 bit (compute.h)
  CacheMode mode = CacheMode::as_you_go;
  bool operator==(const Profile&) const = default;

  bool needs_resolve() const;  // static scales without their numbers
};

// Grammar, items separated by commas:
//   profile := preset item* | "k=" format ",v=" format item*
//   item    := "k=" format | "v=" format | "scale=" axis | "k-scale=" axis | "v-scale=" axis
//              | "skip-layers=" range ("," range)* | "mode=" ("as-you-go" | "transcode")
//   preset  := f32 | fp16 | bf16 | e4m3 | e5m2 | int8 | int8-tensor | fp8 (= e4m3, as in vLLM)
//   format  := f32 | fp16 | bf16 | e4m3 | e5m2 | int8;  range := N | N-M
//   axis    := none | tensor | token-head | checkpoint
// "k=" and "v=" bring their format's own axis (token-head for int8, none for the others); "scale=" then sets
// that of every 8-bit part, "k-scale=" and "v-scale=" that of one. int8 always has a scale, 16- and 32-bit
// formats never do; those of a checkpoint are for e4m3 and e5m2. Throws Error{usage} that names the word it
// does not know and lists those it does.
Profile parse_profile(std::string_view text);

// "fp16,int8,k=e4m3,v=fp16,e4m3,skip-layers=0-1,27" is four profiles: in a list a preset or a "k=" begins a
// new one.
std::vector<Profile> parse_profile_list(std::string_view text);

// The profile's name in tables: the shortest text of the form "preset item*" or "k=,v= item*" that parses
// back to it, alone or in a list; static scales are left out.
std::string canonical(const Profile& profile);

// Sorted layers as skip-layers= takes them: {0, 1, 2, 27} is "0-2,27".
std::string layer_ranges(const std::vector<int>& layers);

// Every field, static scales included, keys sorted; parses back exactly. Throws Error{bad_file} for anything
// else.
std::string to_json(const Profile& profile);
Profile profile_from_json(std::string_view json);
std::string profile_hash(const Profile& profile);  // XXH3-128 of to_json, 32 hex digits

const char* name_of(Format format);
const char* name_of(ScaleAxis axis);
const char* name_of(CacheMode mode);

}  // namespace kveval
