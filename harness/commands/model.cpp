// kveval model list | pull | inspect | tokenize | logits | generate: looking at models without a run.
#include "harness/commands/model.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/model/catalog.h"
#include "engine/text/utf8.h"
#include "harness/commands/commands.h"
#include "harness/commands/pull.h"
#include "harness/commands/terminal_table.h"
#include "harness/progress.h"
#include "reports/text.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

constexpr const char* kPhantom =
    "computed weights, known answers; options: phantom:kappa=80,beta=160,rho=0,seed=3,outlier=60";

// Empty when there is no folder for models at all.
std::string path_of(const CatalogEntry& entry) {
  try {
    return catalog_path(entry.name);
  } catch (const Error&) { return {}; }
}

}  // namespace

void print_models(bool json, const Context& context) {
  Json rows = Json::array({{{"name", "phantom"}, {"summary", kPhantom}, {"present", true}}});
  TextTable table({{"name"}, {"size", Align::right}, {"here"}, {"licence"}, {"summary"}});
  table.add({"phantom", kNone, "built in", kNone, kPhantom});
  for (const CatalogEntry& entry : catalog()) {
    const std::string path = path_of(entry);
    std::error_code missing;
    const bool present = !path.empty() && std::filesystem::exists(path, missing);
    rows.push_back({{"name", entry.name},
                    {"summary", entry.description},
                    {"licence", entry.licence},
                    {"bytes", entry.bytes},
                    {"sha256", entry.sha256},
                    {"packages", entry.packages},
                    {"path", path},
                    {"present", present}});
    table.add({entry.name, format_bytes(double(entry.bytes)), present ? "yes" : "no", entry.licence,
               entry.description});
  }
  if (json) return print_json({{"schema", "kveval.list-models/1"}, {"models", rows}});
  fmt::print("{}", table.text());
  if (context.quiet) return;
  fmt::print(stderr,
             "\n'kveval model pull NAME' fetches one, and --model NAME does on first use; a GGUF file or a\n"
             "Hugging Face directory of your own is named by its path\n");
}

std::string quoted_piece(std::string_view text) {
  std::string out = "'";
  while (!text.empty()) {
    const unsigned char c = static_cast<unsigned char>(text.front());
    size_t size = 1;
    if (c == '\n' || c == '\t' || c == '\r') {
      out += c == '\n' ? "\\n" : c == '\t' ? "\\t" : "\\r";
    } else if (c < 0x20 || c == 0x7F || valid_utf8_prefix(text) == 0) {
      out += fmt::format("\\x{:02X}", c);
    } else {
      size = first_character(text);
      const std::string safe = printable(text.substr(0, size), 1);
      for (const char byte : safe.empty() ? text.substr(0, size) : std::string_view())
        out += fmt::format("\\x{:02X}", static_cast<unsigned char>(byte));
      out += safe;
    }
    text.remove_prefix(size);
  }
  return out + "'";
}

void check_utf8(std::string_view text, const char* what) {
  if (is_utf8(text)) return;
  throw Error(ErrorKind::usage,
              fmt::format("{} is not UTF-8 from byte {} on", what, valid_utf8_prefix(text) + 1));
}

void add_model_argument(CLI::App& command, std::string& model) {
  command
      .add_option("model,--model", model,
                  "a name, a GGUF file or a Hugging Face directory: the first word, or behind --model")
      ->required();
}

void add_model_command(CLI::App& app, Context& context) {
  CLI::App* model = app.add_subcommand("model", "List, fetch and look at models");
  model->require_subcommand(0, 1);
  model->callback([model] {
    if (model->get_subcommands().empty())
      throw Error(ErrorKind::usage,
                  "say what to do with models: list, pull, inspect, tokenize, logits or generate",
                  "'kveval model --help' explains them");
  });

  const auto json = std::make_shared<bool>(false);
  CLI::App* list = model->add_subcommand("list", "The models there are by name, and which are here");
  list->add_flag("--json", *json, "print JSON");
  list->callback([json, &context] { print_models(*json, context); });

  const auto names = std::make_shared<std::vector<std::string>>();
  CLI::App* pull = model->add_subcommand("pull", "Fetch models by name; prints where their files are");
  pull->add_option("names", *names, "catalogued models ('kveval model list')")->required();
  pull->callback([names, &context] { pull_models(*names, true, context); });

  add_model_inspect(*model, context);
  add_model_tokenize(*model, context);
  add_model_logits(*model, context);
  add_model_generate(*model, context);
}

}  // namespace kveval
