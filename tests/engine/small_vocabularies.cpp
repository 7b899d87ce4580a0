#include "tests/engine/small_vocabularies.h"

#include <fmt/format.h>

#include <set>

#include "engine/text/utf8.h"

namespace kveval {

std::string byte_character(int byte) {
  const auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  };
  int others_before = 0;
  for (int b = 0; b < byte; ++b) others_before += is_printable(b) ? 0 : 1;
  std::string text;
  append_utf8(text, char32_t(is_printable(byte) ? byte : 256 + others_before));
  return text;
}

std::string in_byte_alphabet(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += byte_character(static_cast<unsigned char>(c));
  return text;
}

Vocabulary byte_level_vocabulary(const std::string& pre_tokenizer, const MergeList& merges) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre_tokenizer = pre_tokenizer;
  for (int byte = 0; byte < 256; ++byte) vocabulary.pieces.push_back(byte_character(byte));
  std::set<std::string> made;
  for (const auto& [left, right] : merges) {
    vocabulary.merges.push_back(in_byte_alphabet(left) + ' ' + in_byte_alphabet(right));
    if (made.insert(left + right).second) vocabulary.pieces.push_back(in_byte_alphabet(left + right));
  }
  vocabulary.kinds.assign(vocabulary.pieces.size(), PieceKind::normal);
  vocabulary.bos = Token(vocabulary.pieces.size());
  vocabulary.eos = Token(vocabulary.pieces.size() + 1);
  for (const char* special : {"<s>", "</s>", "<tool>"}) vocabulary.pieces.emplace_back(special);
  vocabulary.kinds.insert(vocabulary.kinds.end(),
                          {PieceKind::control, PieceKind::control, PieceKind::user_defined});
  return vocabulary;
}

MergeList random_merges(Random& random, const std::string& letters, size_t count) {
  std::vector<std::string> pieces;
  for (const char c : letters) pieces.emplace_back(1, c);
  MergeList merges;
  std::set<std::pair<std::string, std::string>> seen;
  while (merges.size() < count) {
    std::pair<std::string, std::string> merge{pieces[random.below(pieces.size())],
                                              pieces[random.below(pieces.size())]};
    if (merge.first.size() + merge.second.size() > 12 || !seen.insert(merge).second) continue;
    pieces.push_back(merge.first + merge.second);
    merges.push_back(std::move(merge));
  }
  return merges;
}

std::string with_space_marks(std::string text) {
  for (size_t at = text.find('_'); at != std::string::npos; at = text.find('_', at))
    text.replace(at, 1, "\u2581");
  return text;
}

Vocabulary sentencepiece_vocabulary(const std::vector<std::string>& pieces) {
  Vocabulary vocabulary;
  vocabulary.model = "llama";
  vocabulary.pieces = {"<unk>", "<s>", "</s>"};
  vocabulary.kinds = {PieceKind::unknown, PieceKind::control, PieceKind::control};
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.pieces.push_back(fmt::format("<0x{:02X}>", byte));
    vocabulary.kinds.push_back(PieceKind::byte);
  }
  for (const std::string& piece : pieces) {
    vocabulary.pieces.push_back(with_space_marks(piece));
    vocabulary.kinds.push_back(PieceKind::normal);
  }
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) vocabulary.scores.push_back(-float(id));
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  vocabulary.prefix = SpacePrefix::none;
  return vocabulary;
}

nlohmann::json byte_level_step(bool has_pattern) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", has_pattern}};
}

nlohmann::json model_json(const Vocabulary& vocabulary, const std::set<PieceKind>& added) {
  nlohmann::json document = {{"version", "1.0"},
                             {"truncation", nullptr},
                             {"padding", nullptr},
                             {"normalizer", nullptr},
                             {"post_processor", nullptr},
                             {"added_tokens", nlohmann::json::array()},
                             {"model", {{"type", "BPE"}, {"dropout", nullptr}, {"unk_token", nullptr}}}};
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    document["model"]["vocab"][vocabulary.pieces[id]] = id;
    if (added.contains(vocabulary.kinds[id]))
      document["added_tokens"].push_back({{"id", id},
                                          {"content", vocabulary.pieces[id]},
                                          {"single_word", false},
                                          {"lstrip", false},
                                          {"rstrip", false},
                                          {"normalized", false},
                                          {"special", vocabulary.kinds[id] != PieceKind::user_defined}});
  }
  return document;
}

nlohmann::json byte_level_json(const Vocabulary& vocabulary) {
  nlohmann::json document = model_json(vocabulary, {PieceKind::control, PieceKind::user_defined});
  document["model"]["merges"] = vocabulary.merges;
  document["pre_tokenizer"] = byte_level_step(true);
  document["decoder"] = byte_level_step(true);
  return document;
}

}  // namespace kveval
