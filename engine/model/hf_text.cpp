#include "engine/model/hf_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/model/file_error.h"
#include "engine/text/tokenizer_json.h"
#include "engine/text/vocabulary.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTokenizerBytes = 256 << 20;  // Gemma 3's has 33 MB
constexpr uint64_t kMaxTextBytes = 16 << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// As many pieces as the model has rows. Checkpoints pad their embedding; those of Gemma 3 without images
// leave out the row of the image token, which no text can hold.
void fit(Vocabulary& vocabulary, size_t rows, const std::string& path) {
  pad(vocabulary, rows);
  for (size_t id = rows; id < vocabulary.pieces.size(); ++id)
    if (vocabulary.kinds[id] != PieceKind::control)
      throw file_error(path, fmt::format("the piece {} has the id {}, but the model has {} rows",
                                         quote(vocabulary.pieces[id]), id, rows));
  vocabulary.pieces.resize(rows);
  vocabulary.kinds.resize(rows);
  if (!vocabulary.scores.empty()) vocabulary.scores.resize(rows);
}

// The tokens that end what generate() writes: generation_config.json's, else config.json's.
std::vector<Token> ending_tokens(const fs::path& folder, const HfConfig& config) {
  const fs::path path = folder / "generation_config.json";
  if (!is_there(path)) return config.eos;
  const nlohmann::json document = read_json_file(path.string(), kMaxTextBytes);
  JsonKeys keys(path.string(), document);
  const std::vector<Token> ids = token_ids(keys, "eos_token_id");
  return ids.empty() ? config.eos : ids;
}

void set_special_tokens(Vocabulary& vocabulary, const TokenizerConfig& named, const HfConfig& config,
                        const std::vector<Token>& ending, const std::string& path) {
  const auto named_id = [&](const char* key, const std::optional<std::string>& piece) {
    if (!piece) return std::optional<Token>();
    const std::optional<Token> id = find_piece(vocabulary, *piece);
    if (!id) throw file_error(path, fmt::format("'{}' is {}, which is no piece", key, quote(*piece)));
    return id;
  };
  const std::optional<Token> bos = named_id("bos_token", named.bos), eos = named_id("eos_token", named.eos);
  if (!vocabulary.bos) vocabulary.bos = bos;
  if (!vocabulary.bos && !config.bos.empty()) vocabulary.bos = config.bos[0];
  // One token ends an answer: the tokenizer's, unless generate() would not stop at it.
  vocabulary.eos = eos;
  if (!ending.empty() && (!eos || std::ranges::find(ending, *eos) == ending.end()))
    vocabulary.eos = ending[0];
}

std::optional<std::string> chat_template(const fs::path& folder, const TokenizerConfig& config) {
  const fs::path path = folder / "chat_template.jinja";
  return is_there(path) ? read_text_file(path.string(), kMaxTextBytes) : config.chat_template;
}

}  // namespace

void read_hf_text(const std::string& directory, const HfConfig& config, Model& model) {
  const fs::path folder(directory);
  const std::string path = (folder / "tokenizer.json").string();
  const std::string config_path = (folder / "tokenizer_config.json").string();
  if (!is_there(path))
    throw file_error(
        directory, "has no tokenizer.json",
        "kveval reads no tokenizer.model: save the tokenizer once with transformers, or use a GGUF file");
  Vocabulary vocabulary =
      naming(directory, [&] { return read_tokenizer_json(read_text_file(path, kMaxTokenizerBytes)); });
  TokenizerConfig named;
  if (is_there(config_path))
    named =
        naming(directory, [&] { return read_tokenizer_config(read_text_file(config_path, kMaxTextBytes)); });
  fit(vocabulary, size_t(config.model.vocabulary), path);
  set_special_tokens(vocabulary, named, config, ending_tokens(folder, config), config_path);
  model.tokenizer = naming(directory, [&] { return make_tokenizer(vocabulary); });

  if (const auto jinja = chat_template(folder, named)) set_chat(model, vocabulary, *jinja, directory);
}

}  // namespace kveval
