// kveval model tokenize: text to token ids.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/text/utf8.h"
#include "harness/commands/model.h"
#include "harness/commands/pull.h"
#include "harness/commands/terminal_table.h"
#include "reports/text.h"

namespace kveval {
namespace {

using Json = nlohmann::json;

struct TokenizeOptions {
  std::string model;
  std::vector<std::string> texts;
  std::string jsonl;  // a file or "-"
  bool bos = false, special = false, json = false;
};

Tokens tokens_of(const Tokenizer& tokenizer, std::string text, const TokenizeOptions& options) {
  const std::vector<PromptPart> parts = {{std::move(text), options.special}};
  Tokens tokens = options.special ? tokenizer.encode_prompt(parts) : tokenizer.encode(parts[0].text);
  if (options.bos && tokenizer.bos()) tokens.insert(tokens.begin(), *tokenizer.bos());
  return tokens;
}

std::string text_of_line(const std::string& line, const std::string& where) {
  const std::string hint = "a line is {\"text\": \"...\"}";
  if (!is_utf8(line))
    throw Error(ErrorKind::bad_file,
                fmt::format("{} is not UTF-8 from byte {} on", where, valid_utf8_prefix(line) + 1), hint);
  const Json json = Json::parse(line, nullptr, false);
  if (json.is_discarded()) throw Error(ErrorKind::bad_file, where + " is not JSON", hint);
  if (!json.is_object() || !json.contains("text") || !json["text"].is_string())
    throw Error(ErrorKind::bad_file, where + " has no \"text\" that is a string", hint);
  return json["text"].get<std::string>();
}

// One line out for each line in, as soon as it is there.
void tokenize_lines(std::istream& lines, const std::string& name, const Tokenizer& tokenizer,
                    const TokenizeOptions& options) {
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}: line {}", name, ++number);
    fmt::print("{}\n", Json{{"ids", tokens_of(tokenizer, text_of_line(line, where), options)}}.dump());
    std::fflush(stdout);
  }
}

void tokenize_texts(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  Json all = Json::array();
  for (const std::string& text : options.texts) {
    const Tokens tokens = tokens_of(tokenizer, text, options);
    Json pieces = Json::array();
    TextTable table({{"#", Align::right}, {"id", Align::right}, {"piece"}});
    for (size_t i = 0; i < tokens.size(); ++i) {
      const std::string piece = tokenizer.piece(tokens[i]);
      table.add({std::to_string(i), std::to_string(tokens[i]), quoted_piece(piece)});
      pieces.push_back(piece);
    }
    all.push_back({{"text", text}, {"ids", tokens}, {"pieces", pieces}});
    if (options.json) continue;
    fmt::print("{}{} of {}\n", table.text(), counted(tokens.size(), "token"), counted(text.size(), "byte"));
  }
  if (!options.json) return;
  print_json({{"schema", "kveval.model-tokenize/1"}, {"texts", all}});
}

void tokenize_command(const TokenizeOptions& options, const Context& context) {
  if (options.texts.empty() == options.jsonl.empty())
    throw Error(ErrorKind::usage, "give either a text or --jsonl",
                "kveval model tokenize MODEL \"some text\", or --jsonl FILE with a {\"text\"} a line");
  std::ifstream file;
  if (!options.jsonl.empty() && options.jsonl != "-") {
    file.open(options.jsonl, std::ios::binary);
    std::error_code ignored;
    if (!file || std::filesystem::is_directory(options.jsonl, ignored))
      throw Error(ErrorKind::bad_file, fmt::format("'{}' cannot be read", options.jsonl),
                  "name a file with a {\"text\"} a line, or - for standard input");
  }
  for (const std::string& text : options.texts) check_utf8(text, "the text");
  const std::shared_ptr<const Model> model = load_or_pull(options.model, context);
  if (!options.jsonl.empty()) {
    const bool standard = options.jsonl == "-";
    tokenize_lines(standard ? std::cin : file, standard ? "standard input" : options.jsonl, *model->tokenizer,
                   options);
  } else {
    tokenize_texts(*model->tokenizer, options);
  }
}

}  // namespace

void add_model_tokenize(CLI::App& model, Context& context) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = model.add_subcommand("tokenize", "Text to token ids");
  add_model_argument(*command, options->model);
  command->add_option("texts", options->texts, "texts, each tokenized for itself");
  command
      ->add_option("--jsonl", options->jsonl,
                   "a file, or - for standard input, of {\"text\"} a line; {\"ids\"} a line comes out")
      ->type_name("FILE");
  command->add_flag("--bos", options->bos, "begin with BOS where the model wants one");
  command->add_flag("--special", options->special, "read special tokens, such as <|im_end|>, as such");
  command->add_flag("--json", options->json, "print texts, ids and pieces as JSON");
  command->callback([options, &context] { tokenize_command(*options, context); });
}

}  // namespace kveval
