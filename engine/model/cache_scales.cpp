// FP8-KV scales in a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "engine/model/file_error.h"
#include "engine/model/hf_model.h"

namespace kveval {
namespace {

struct Spelling {
  const char *k, *v;  // behind "PREFIX.N."
};
constexpr std::array<Spelling, 4> kSpellings = {{
    {"self_attn.k_scale", "self_attn.v_scale"},
    {"self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"},
    {"self_attn.k_proj.output_scale", "self_attn.v_proj.output_scale"},
    {"self_attn.kv_scale", "self_attn.kv_scale"},
}};

std::string text_of(const Spelling& spelling) {
  return std::string_view(spelling.k) == spelling.v ? spelling.k
                                                    : fmt::format("{}, {}", spelling.k, spelling.v);
}

float scale_of(const Tensor& tensor, const std::string& where, int kv_heads) {
  const int64_t count = rows(tensor) * cols(tensor);
  if (count != 1 && count != kv_heads)
    throw file_error(where, fmt::format("tensor {} has the shape {}, where one scale is expected",
                                        quote(tensor.name), shape_text(tensor.shape)));
  const std::vector<float> scales = floats_of(tensor);
  for (const float scale : scales)
    if (!(scale > 0) || !std::isfinite(scale))
      throw file_error(where, fmt::format("tensor {} holds the scale {}, which is no positive number",
                                          quote(tensor.name), scale));
  if (std::ranges::adjacent_find(scales, std::not_equal_to()) != scales.end())
    throw file_error(where,
                     fmt::format("tensor {} has a scale for each of {} heads", quote(tensor.name), kv_heads),
                     "kveval knows one scale per layer");
  return scales[0];
}

}  // namespace

CacheScales read_cache_scales(TensorSet& tensors, const std::string& where, const std::string& prefix,
                              const ModelConfig& config) {
  const auto name = [&](size_t layer, const char* end) {
    return fmt::format("{}.{}.{}", prefix, layer, end);
  };
  const Spelling* found = nullptr;
  for (const Spelling& spelling : kSpellings) {
    for (size_t layer = 0; layer < config.layers.size(); ++layer) {
      if (!tensors.peek(name(layer, spelling.k)) && !tensors.peek(name(layer, spelling.v))) continue;
      if (found && found != &spelling)
        throw file_error(where,
                         fmt::format("has cache scales as {} and as {}", text_of(*found), text_of(spelling)));
      found = &spelling;
    }
  }
  CacheScales scales;
  if (!found) return scales;
  scales.names = text_of(*found);
  for (size_t layer = 0; layer < config.layers.size(); ++layer) {
    const auto one = [&](const char* end) {
      const Tensor* tensor = tensors.find(name(layer, end));
      if (!tensor)
        throw file_error(where, fmt::format("tensor {} is missing, but other layers have cache scales",
                                            quote(name(layer, end))));
      return scale_of(*tensor, where, config.layers[layer].kv_heads);
    };
    scales.k.push_back(one(found->k));
    scales.v.push_back(one(found->v));
  }
  return scales;
}

}  // namespace kveval
