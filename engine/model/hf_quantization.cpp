// quantization_config: what a checkpoint says of quantized weights and of its KV cache.
#include <fmt/format.h>

#include "engine/model/file_error.h"
#include "engine/model/hf_config.h"

namespace kveval {
namespace {

constexpr const char* kHint = "use the checkpoint in bf16, f16 or f32, or a GGUF file of it";

// The scales in the file mean code * scale = value only under this scheme.
void check_cache_scheme(JsonKeys scheme) {
  scheme.require("num_bits", 8);
  scheme.require("type", "float");
  scheme.require("symmetric", true);
  scheme.require("dynamic", false);
  // One scale per tensor or per head: the tensors show which, and are checked there.
  scheme.ignore({"strategy", "observer", "observer_kwargs", "actorder", "scale_dtype", "zp_dtype"});
  for (const char* key : {"group_size", "block_structure"})
    if (scheme.has(key)) throw scheme.error(key, "is set: kveval knows one scale per layer");
  scheme.refuse_unread();
}

void check_scheme(JsonKeys keys) {
  const std::string method = keys.text("quant_method").value_or("compressed-tensors");
  const auto refuse = [&](std::string_view key, const std::string& what) {
    throw keys.error(key, what + ", which kveval does not read", kHint);
  };
  if (method != "compressed-tensors" && method != "modelopt")
    refuse("quant_method", fmt::format("says that weights are quantized by {}", quote(method)));
  if (keys.has("quant_algo")) refuse("quant_algo", "says that weights are quantized");
  if (std::optional<JsonKeys> groups = keys.object("config_groups"); groups && !groups->empty())
    refuse("config_groups", "says that weights or activations are quantized");
  if (std::optional<JsonKeys> transforms = keys.object("transform_config");
      transforms && !transforms->empty())
    refuse("transform_config", "says that weights are rotated");
  if (std::optional<JsonKeys> sparsity = keys.object("sparsity_config"); sparsity && !sparsity->empty())
    sparsity->require("format", "dense");
  keys.require("kv_cache_quant_algo", "FP8");
  if (std::optional<JsonKeys> scheme = keys.object("kv_cache_scheme")) check_cache_scheme(std::move(*scheme));
  keys.ignore({"format", "ignore", "exclude_modules", "quantization_status", "global_compression_ratio",
               "version", "producer"});
  keys.refuse_unread();
}

}  // namespace

void check_hf_quantization(JsonKeys& config) {
  for (const char* key : {"quantization_config", "compression_config"})
    if (std::optional<JsonKeys> scheme = config.object(key)) check_scheme(std::move(*scheme));
}

}  // namespace kveval
