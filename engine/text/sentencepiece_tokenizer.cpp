#include "engine/text/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <string>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/text/sentencepiece_proto.h"
#include "engine/text/special_tokens.h"

namespace kveval {
namespace {

constexpr size_t kPartBytes = 1024;

static_assert(sizeof(int) == sizeof(Token));

// SentencePiece's encode and decode are const and keep no state, so one processor serves all threads.
class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::string_view proto) : hash_(hash_hex(proto)) {
    load(proto);
    bos_ = id_if_defined(processor_.bos_id());
    eos_ = id_if_defined(processor_.eos_id());
  }

  explicit SentencePieceTokenizer(const Vocabulary& vocabulary)
      : prefix_(vocabulary.prefix.value_or(SpacePrefix::every_text)),
        eos_(vocabulary.eos),
        hash_(hash_of(vocabulary)) {
    if (vocabulary.add_bos.value_or(true)) {
      if (!vocabulary.bos)
        throw Error(ErrorKind::bad_file, "the SentencePiece vocabulary wants a BOS token and names none");
      bos_ = vocabulary.bos;
    }
    load(sentencepiece_proto(vocabulary));
  }

  Tokens encode(std::string_view text) const override {
    return wants_space(text, true) ? encode_whole(' ' + std::string(text)) : encode_whole(text);
  }

  Tokens encode_prompt(std::span<const PromptPart> parts) const override {
    return encode_runs(specials_, parts, [this](const std::string& text, bool first) {
      return encode_whole(wants_space(text, first) ? ' ' + text : text);
    });
  }

  std::string decode(const Tokens& tokens) const override {
    for (const Token token : tokens) check_token(token, vocabulary_size());
    std::string text;
    check(processor_.Decode(tokens, &text), "decode");
    if (prefix_ != SpacePrefix::none && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  // Spaces in front included, which decode() drops where they are the tokenizer's own.
  std::string piece(Token token) const override {
    if (token < 0 || token >= vocabulary_size() || processor_.IsByte(token)) return decode({token});
    std::string text = processor_.IdToPiece(token);
    for (size_t at = 0; (at = text.find(kSpaceMark, at)) != std::string::npos; ++at)
      text.replace(at, kSpaceMark.size(), " ");
    return text;
  }

  int vocabulary_size() const override { return processor_.GetPieceSize(); }
  std::optional<Token> bos() const override { return bos_; }
  std::optional<Token> eos() const override { return eos_; }
  std::string hash() const override { return hash_; }
  std::string kind() const override { return "SentencePiece"; }

 private:
  void load(std::string_view proto) {
    const auto status = processor_.LoadFromSerializedProto({proto.data(), proto.size()});
    if (!status.ok())
      throw Error(ErrorKind::bad_file,
                  fmt::format("the SentencePiece model cannot be read: {}", status.message()),
                  "Check that the tokenizer's .model file is complete.");
    cuttable_ = words_stand_alone();
    for (int id = 0; id < processor_.GetPieceSize(); ++id)
      if (processor_.IsControl(id) || processor_.IsUnknown(id)) specials_.add(processor_.IdToPiece(id), id);
  }

  bool wants_space(std::string_view text, bool first) const {
    switch (prefix_) {
      case SpacePrefix::none: return false;
      case SpacePrefix::every_text: return !text.empty();
      case SpacePrefix::every_bare_text: return !text.empty() && !begins_with_space(text);
      case SpacePrefix::first_bare_text: return first && !text.empty() && !begins_with_space(text);
    }
    return false;
  }

  static bool begins_with_space(std::string_view text) {
    return text.starts_with(' ') || text.starts_with(kSpaceMark);
  }

  Tokens encode_whole(std::string_view text) const {
    Tokens tokens;
    while (!text.empty()) {
      const std::string_view part = text.substr(0, cuttable_ ? end_of_part(text) : text.size());
      Tokens encoded;
      check(processor_.Encode({part.data(), part.size()}, &encoded), "encode");
      tokens.insert(tokens.end(), encoded.begin(), encoded.end());
      text.remove_prefix(part.size());
    }
    return tokens;
  }

  // SentencePiece slows down with the length of its input: 680 kB take four times as long whole as in parts.
  // Cutting before the space that ends a word changes nothing as long as
  //   - no piece reaches over such a place (a mark for a space behind another character), and
  //   - no space is added to a part or taken from it.
  bool words_stand_alone() const {
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (processor_.IsControl(id) || processor_.IsUnknown(id) || processor_.IsByte(id)) continue;
      std::string_view piece = processor_.IdToPiece(id);
      while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
      if (piece.find(kSpaceMark) != std::string_view::npos) return false;
    }
    for (const std::string text : {"a", " a", "  a"}) {
      std::vector<std::string> pieces;
      if (!processor_.Encode(text, &pieces).ok()) return false;
      std::string joined;
      for (const std::string& piece : pieces) joined += piece;
      size_t marks = 0;
      while (std::string_view(joined).substr(marks * kSpaceMark.size()).starts_with(kSpaceMark)) ++marks;
      if (marks != text.size() - 1) return false;
    }
    return true;
  }

  // The first place to cut at, kPartBytes in or later: before a space that follows a printable ASCII
  // character.
  static size_t end_of_part(std::string_view text) {
    for (size_t at = kPartBytes; at < text.size(); ++at)
      if (text[at] == ' ' && text[at - 1] > ' ' && text[at - 1] < 0x7F) return at;
    return text.size();
  }

  static std::optional<Token> id_if_defined(int id) {
    return id < 0 ? std::nullopt : std::optional<Token>(id);
  }

  static void check(const sentencepiece::util::Status& status, const char* what) {
    if (!status.ok())
      throw Error(ErrorKind::run, fmt::format("the tokenizer cannot {}: {}", what, status.message()));
  }

  sentencepiece::SentencePieceProcessor processor_;
  bool cuttable_ = false;
  SpecialTokens specials_;
  SpacePrefix prefix_ = SpacePrefix::none;  // besides what the processor itself adds
  std::optional<Token> bos_, eos_;
  std::string hash_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string_view serialized_model_proto) {
  return std::make_shared<SentencePieceTokenizer>(serialized_model_proto);
}

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(const Vocabulary& vocabulary) {
  return std::make_shared<SentencePieceTokenizer>(vocabulary);
}

}  // namespace kveval
