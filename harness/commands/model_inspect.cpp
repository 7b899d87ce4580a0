// kveval model inspect: what a model is made of, and what its cache takes under each profile.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/cpu/forward.h"
#include "engine/kv/cache.h"
#include "engine/model/weights.h"
#include "engine/profile.h"
#include "harness/commands/model.h"
#include "harness/commands/pull.h"
#include "harness/commands/terminal_table.h"
#include "harness/progress.h"
#include "reports/text.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

constexpr std::array kPresets = {"f32", "fp16", "bf16", "e4m3", "e5m2", "int8", "int8-tensor"};
constexpr std::array kLengths = {8192, 32768, 131072};
constexpr int kPage = 128, kChunk = 512;  // as runs have them; bytes a token do not depend on it
constexpr size_t kLine = 400;

struct InspectOptions {
  std::string model;
  bool json = false;
};

struct TypeTotal {
  size_t tensors = 0;
  int64_t parameters = 0;
  size_t bytes = 0;
};
using TypeTotals = std::map<std::string, TypeTotal>;

TypeTotals types_of(const Model& model) {
  TypeTotals totals;
  const auto add = [&](std::string_view type, int64_t elements, size_t bytes) {
    TypeTotal& total = totals[std::string(type)];
    ++total.tensors;
    total.parameters += elements;
    total.bytes += bytes;
  };
  const auto add_tensor = [&](const Tensor& tensor) {
    add(info_of(tensor.type).name, rows(tensor) * cols(tensor), tensor.data.size());
  };
  if (!model.files.all().empty()) {
    for (const Tensor& tensor : model.files.all()) add_tensor(tensor);
    return totals;
  }
  const Weights& w = model.weights;
  const auto add_vector = [&](const std::vector<float>& v) {
    if (!v.empty()) add("F32", int64_t(v.size()), v.size() * sizeof(float));
  };
  add_tensor(w.embedding);
  for (const LayerWeights& layer : w.layers) {
    for (const Tensor* matrix : matrices_of(layer)) add_tensor(*matrix);
    for (const std::vector<float>* vector : vectors_of(layer)) add_vector(*vector);
  }
  add_vector(w.output_norm);
  if (!has_tied_head(w)) add_tensor(w.head);
  return totals;
}

int64_t parameters_of(const TypeTotals& types) {
  int64_t sum = 0;
  for (const auto& [name, total] : types) sum += total.parameters;
  return sum;
}

// Layers by what one of their numbers is, in the order of the first that has it.
struct LayerKind {
  int value = 0;
  std::vector<int> layers;
};
std::vector<LayerKind> kinds(const ModelConfig& config, int LayerConfig::*member) {
  std::vector<LayerKind> found;
  for (size_t l = 0; l < config.layers.size(); ++l) {
    const int value = config.layers[l].*member;
    auto kind = std::ranges::find(found, value, &LayerKind::value);
    if (kind == found.end()) kind = found.insert(found.end(), {value, {}});
    kind->layers.push_back(int(l));
  }
  return found;
}

std::string rope_text(const ModelConfig& config, int rope) {
  return rope == kNoRope ? "none" : config.ropes[size_t(rope)].text;
}

// "12", or "12 (layers 0-3), 8 (layers 4-7)".
std::string by_layer(const ModelConfig& config, int LayerConfig::*member,
                     const std::function<std::string(int)>& name) {
  const std::vector<LayerKind> all = kinds(config, member);
  std::string text;
  for (const LayerKind& kind : all) {
    text += (text.empty() ? "" : ", ") + name(kind.value);
    if (all.size() > 1)
      text += fmt::format(" (layer{} {})", kind.layers.size() > 1 ? "s" : "", layer_ranges(kind.layers));
  }
  return text;
}

std::string number(int value) { return std::to_string(value); }

Json by_layer_json(const ModelConfig& config, int LayerConfig::*member, const char* name,
                   const std::function<Json(int)>& value) {
  Json rows = Json::array();
  for (const LayerKind& kind : kinds(config, member))
    rows.push_back({{name, value(kind.value)}, {"layers", kind.layers}});
  return rows;
}

struct CacheSize {
  std::string profile;
  size_t bytes_per_token = 0;  // of one more token in a long sequence: windowed layers cost nothing more
  std::vector<size_t> totals;  // of kLengths as far as the context reaches
};

std::vector<CacheSize> cache_sizes(const ModelConfig& config) {
  const std::vector<kv::LayerShape> all = cpu::layer_shapes(config);
  std::vector<kv::LayerShape> growing;
  for (const kv::LayerShape& shape : all)
    if (shape.window == 0) growing.push_back(shape);
  std::vector<CacheSize> sizes;
  sizes.reserve(kPresets.size());
  for (const char* name : kPresets) {
    const Profile profile = parse_profile(name);
    CacheSize size{name, kv::bytes_per_token(growing, profile), {}};
    for (const int length : kLengths)
      if (length <= config.context)
        size.totals.push_back(kv::bytes_for(all, profile, kPage, size_t(length), kChunk));
    sizes.push_back(std::move(size));
  }
  return sizes;
}

Json token_json(const Tokenizer& tokenizer, const std::optional<Token>& token) {
  return token ? Json{{"id", *token}, {"piece", tokenizer.piece(*token)}} : Json();
}

Json inspect_json(const Model& model) {
  const ModelConfig& config = model.config;
  const TypeTotals types = types_of(model);
  const auto plain = [](int value) { return Json(value); };
  Json weights = Json::array(), cache = Json::array();
  for (const auto& [name, total] : types)
    weights.push_back({{"type", name},
                       {"tensors", total.tensors},
                       {"parameters", total.parameters},
                       {"bytes", total.bytes}});
  for (const CacheSize& size : cache_sizes(config)) {
    Json totals = Json::object();
    for (size_t i = 0; i < size.totals.size(); ++i) totals[length_label(kLengths[i])] = size.totals[i];
    cache.push_back(
        {{"profile", size.profile}, {"bytes_per_token", size.bytes_per_token}, {"totals", totals}});
  }
  Json tokenizer;
  if (model.tokenizer) {
    const Tokenizer& t = *model.tokenizer;
    tokenizer = {{"kind", t.kind()},
                 {"vocabulary", t.vocabulary_size()},
                 {"bos", token_json(t, t.bos())},
                 {"eos", token_json(t, t.eos())},
                 {"hash", t.hash()}};
  }
  Json chat = {{"family", model.chat.family}, {"template_hash", template_hash(model.chat)}};
  if (model.chat_error) chat = {{"error", model.chat_error->what()}};
  Json scales;
  if (!model.cache_scales.k.empty())
    scales = {{"names", model.cache_scales.names}, {"k", model.cache_scales.k}, {"v", model.cache_scales.v}};
  return {{"schema", "kveval.model-inspect/1"},
          {"model", model.name},
          {"model_hash", model.hash},
          {"architecture", config.architecture},
          {"parameters", parameters_of(types)},
          {"layers", config.layers.size()},
          {"width", config.width},
          {"head_dim", config.head_dim},
          {"heads", by_layer_json(config, &LayerConfig::heads, "heads", plain)},
          {"kv_heads", by_layer_json(config, &LayerConfig::kv_heads, "kv_heads", plain)},
          {"ff", by_layer_json(config, &LayerConfig::ff, "ff", plain)},
          {"windows", by_layer_json(config, &LayerConfig::window, "window", plain)},
          {"ropes", by_layer_json(config, &LayerConfig::rope, "rope",
                                  [&](int rope) { return Json(rope_text(config, rope)); })},
          {"vocabulary", config.vocabulary},
          {"context", config.context},
          {"tied_head", has_tied_head(model.weights)},
          {"weights", weights},
          {"tokenizer", tokenizer},
          {"chat", chat},
          {"cache_scales", scales},
          {"cache", cache}};
}

std::string chat_text(const Model& model) {
  if (model.chat_error) return std::string("not understood: ") + model.chat_error->what();
  if (model.chat.family == "plain") return "none: prompts are plain text";
  return fmt::format("{} ({})", model.chat.family, template_hash(model.chat));
}

std::string token_text(const Tokenizer& tokenizer, const std::optional<Token>& token) {
  return token ? fmt::format("{} {}", *token, quoted_piece(tokenizer.piece(*token))) : "none";
}

std::string scales_text(const CacheScales& scales) {
  if (scales.k.empty()) return "none in the checkpoint";
  const auto [k_least, k_most] = std::ranges::minmax(scales.k);
  const auto [v_least, v_most] = std::ranges::minmax(scales.v);
  return fmt::format("{} (keys {} to {}, values {} to {}): e4m3,scale=checkpoint uses them", scales.names,
                     small_text(double(k_least)), small_text(double(k_most)), small_text(double(v_least)),
                     small_text(double(v_most)));
}

void print_facts(const Model& model) {
  const ModelConfig& config = model.config;
  const auto fact = [](const char* name, const std::string& value) {
    fmt::print("{:<10} {}\n", name, printable(value, kLine));
  };
  const TypeTotals types = types_of(model);
  fact("model", fmt::format("{} ({})", model.name, model.hash));
  fact("layers", fmt::format("{} of architecture {}, width {}, feed-forward {}", config.layers.size(),
                             config.architecture, config.width, by_layer(config, &LayerConfig::ff, number)));
  fact("parameters", grouped(uint64_t(parameters_of(types))));
  fact("heads", fmt::format("{} of size {}", by_layer(config, &LayerConfig::heads, number), config.head_dim));
  fact("KV heads", by_layer(config, &LayerConfig::kv_heads, number));
  fact("attention", by_layer(config, &LayerConfig::window, [](int window) {
         return window == 0 ? std::string("full") : fmt::format("the last {} tokens", window);
       }));
  fact("RoPE", by_layer(config, &LayerConfig::rope, [&](int rope) { return rope_text(config, rope); }));
  fact("context", fmt::format("{} tokens", grouped(uint64_t(config.context))));
  fact("vocabulary", fmt::format("{}, {}", grouped(uint64_t(config.vocabulary)),
                                 has_tied_head(model.weights) ? "the embedding is the output head too"
                                                              : "an output head of its own"));
  if (model.tokenizer) {
    const Tokenizer& t = *model.tokenizer;
    fact("tokenizer", fmt::format("{}, BOS {}, EOS {} ({})", t.kind(), token_text(t, t.bos()),
                                  token_text(t, t.eos()), t.hash()));
  }
  fact("template", chat_text(model));
  fact("KV scales", scales_text(model.cache_scales));

  TextTable weights(
      {{"weights"}, {"tensors", Align::right}, {"parameters", Align::right}, {"bytes", Align::right}});
  for (const auto& [name, total] : types)
    weights.add({name, std::to_string(total.tensors), grouped(uint64_t(total.parameters)),
                 format_bytes(double(total.bytes))});
  fmt::print("\n{}", weights.text());
}

void print_cache(const ModelConfig& config) {
  std::vector<TextTable::Column> columns = {{"cache"}, {"B/token", Align::right}};
  for (const int length : kLengths)
    if (length <= config.context) columns.push_back({length_label(length), Align::right});
  TextTable table(columns);
  for (const CacheSize& size : cache_sizes(config)) {
    std::vector<std::string> row = {size.profile, std::to_string(size.bytes_per_token)};
    for (const size_t total : size.totals) row.push_back(format_bytes(double(total)));
    table.add(row);
  }
  fmt::print("\n{}", table.text());
}

void inspect_command(const InspectOptions& options, const Context& context) {
  const std::shared_ptr<const Model> model = load_or_pull(options.model, context);
  if (options.json) {
    print_json(inspect_json(*model));
    return;
  }
  print_facts(*model);
  print_cache(model->config);
}

}  // namespace

void add_model_inspect(CLI::App& model, Context& context) {
  const auto options = std::make_shared<InspectOptions>();
  CLI::App* command =
      model.add_subcommand("inspect", "What a model is made of, and its cache's bytes under each profile");
  add_model_argument(*command, options->model);
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, &context] { inspect_command(*options, context); });
}

}  // namespace kveval
