#include "engine/model/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "embedded.h"
#include "engine/error.h"
#include "engine/model/file_error.h"
#include "engine/model/gguf_model.h"
#include "engine/model/hf_model.h"
#include "engine/model/phantom.h"
#include "engine/text/sentencepiece_tokenizer.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

CatalogEntry entry_from(const nlohmann::json& json) {
  CatalogEntry entry{.name = json.at("name"),
                     .description = json.at("summary"),
                     .licence = json.at("licence"),
                     .bytes = json.at("bytes"),
                     .sha256 = json.at("sha256"),
                     .packages = {}};
  constexpr std::string_view kPart = "{part}";
  for (int part = 1; part <= json.at("parts").get<int>(); ++part) {
    std::string package = json.at("package");
    if (const size_t at = package.find(kPart); at != std::string::npos)
      package.replace(at, kPart.size(), std::to_string(part));
    entry.packages.push_back(std::move(package));
  }
  return entry;
}

std::vector<CatalogEntry> read_catalog() {
  std::vector<CatalogEntry> entries;
  const auto document = nlohmann::json::parse(embedded::engine_model_catalog_json);
  for (const auto& model : document.at("models")) entries.push_back(entry_from(model));
  return entries;
}

std::string known_names() {
  std::string names = "phantom";
  for (const CatalogEntry& entry : catalog()) names += ", " + entry.name;
  return names;
}

Model load_phantom(std::string_view specification) {
  Model model = build_phantom(parse_phantom(specification),
                              make_sentencepiece_tokenizer(embedded::engine_model_phantom_tokenizer_model));
  check_shapes(model);
  return model;
}

Model load_catalogued(const CatalogEntry& entry) {
  const std::string path = catalog_path(entry.name);
  std::error_code failed;
  const uint64_t bytes = fs::file_size(path, failed);
  const std::string hint =
      fmt::format("kveval model pull {} (or scripts/fetch-model {}) gets it: {:.0f} MB, {}", entry.name,
                  entry.name, double(entry.bytes) / 1e6, entry.licence);
  if (failed) throw Error(ErrorKind::usage, fmt::format("model '{}' is not at {}", entry.name, path), hint);
  if (bytes != entry.bytes)
    throw file_error(path, fmt::format("has {} bytes where {} has {}", bytes, entry.name, entry.bytes),
                     "move it away; " + hint);
  Model model = read_gguf_model(path);
  model.name = entry.name;
  return model;
}

}  // namespace

std::span<const CatalogEntry> catalog() {
  static const std::vector<CatalogEntry> kEntries = read_catalog();
  return kEntries;
}

const CatalogEntry* find_in_catalog(std::string_view name) {
  const auto found = std::ranges::find(catalog(), name, &CatalogEntry::name);
  return found == catalog().end() ? nullptr : &*found;
}

std::string catalog_path(std::string_view name) {
  const auto variable = [](const char* of) -> std::string_view {
    const char* const value = std::getenv(of);
    return value == nullptr ? "" : value;
  };
  fs::path folder = variable("KVEVAL_MODELS");
  if (folder.empty()) {
    if (variable("HOME").empty())
      throw Error(ErrorKind::usage, "there is no folder for models: HOME is not set",
                  "set KVEVAL_MODELS to the folder that holds them");
    folder = fs::path(variable("HOME")) / ".cache" / "kveval" / "models";
  }
  return (folder / fmt::format("{}.gguf", name)).string();
}

std::shared_ptr<const Model> load_model(std::string_view specification) {
  if (specification.substr(0, specification.find(':')) == "phantom")
    return std::make_shared<const Model>(load_phantom(specification));
  if (const CatalogEntry* const entry = find_in_catalog(specification))
    return std::make_shared<const Model>(load_catalogued(*entry));
  const std::string path(specification);
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) return std::make_shared<const Model>(read_gguf_model(path));
  if (fs::is_directory(path, ignored)) return std::make_shared<const Model>(read_hf_model(path));
  if (fs::exists(path, ignored)) throw file_error(path, "is neither a file nor a directory");
  if (fs::is_symlink(path, ignored)) throw file_error(path, "is a link to nothing that is there");
  throw Error(ErrorKind::usage,
              fmt::format("unknown model {}: no such file, and this build knows: {}", quote(specification),
                          known_names()),
              "--model phantom, or with options: --model phantom:kappa=80,seed=3; or the path of a GGUF file "
              "or of a Hugging Face directory");
}

}  // namespace kveval
