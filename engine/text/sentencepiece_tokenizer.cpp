#include "engine/text/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <string>

#include "engine/error.h"
#include "engine/hash.h"

namespace kveval {
namespace {

constexpr std::string_view kSpaceMark = "\u2581";
constexpr size_t kPartBytes = 1024;

static_assert(sizeof(int) == sizeof(Token));

// SentencePiece's encode and decode are const and keep no state, so one processor serves all threads.
class SentencePieceTokenizer : public Tokenizer {
 public:
  explicit SentencePieceTokenizer(std::string_view proto) : hash_(hash_hex(proto)) {
    const auto status = processor_.LoadFromSerializedProto({proto.data(), proto.size()});
    if (!status.ok())
      throw Error(ErrorKind::bad_file,
                  fmt::format("the SentencePiece model cannot be read: {}", status.message()),
                  "Check that the tokenizer's .model file is complete.");
    cuttable_ = words_stand_alone();
  }

  Tokens encode(std::string_view text) const override {
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

  std::string decode(const Tokens& tokens) const override {
    for (const Token token : tokens)
      if (token < 0 || token >= vocabulary_size())
        throw Error(ErrorKind::run, fmt::format("token {} is outside the tokenizer's vocabulary of {}", token,
                                                vocabulary_size()));
    std::string text;
    check(processor_.Decode(tokens, &text), "decode");
    return text;
  }

  int vocabulary_size() const override { return processor_.GetPieceSize(); }
  std::optional<Token> bos() const override { return id_if_defined(processor_.bos_id()); }
  std::optional<Token> eos() const override { return id_if_defined(processor_.eos_id()); }
  std::string hash() const override { return hash_; }

 private:
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
  std::string hash_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string_view serialized_model_proto) {
  return std::make_shared<SentencePieceTokenizer>(serialized_model_proto);
}

}  // namespace kveval
