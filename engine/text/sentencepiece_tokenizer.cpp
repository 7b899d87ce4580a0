#include "engine/text/sentencepiece_tokenizer.h"

#include <fmt/format.h>
#include <sentencepiece_processor.h>

#include <string>

#include "engine/error.h"
#include "engine/hash.h"

namespace kveval {
namespace {

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
  }

  Tokens encode(std::string_view text) const override {
    Tokens tokens;
    check(processor_.Encode({text.data(), text.size()}, &tokens), "encode");
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
  static std::optional<Token> id_if_defined(int id) {
    return id < 0 ? std::nullopt : std::optional<Token>(id);
  }

  static void check(const sentencepiece::util::Status& status, const char* what) {
    if (!status.ok())
      throw Error(ErrorKind::run, fmt::format("the tokenizer cannot {}: {}", what, status.message()));
  }

  sentencepiece::SentencePieceProcessor processor_;
  std::string hash_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_sentencepiece_tokenizer(std::string_view serialized_model_proto) {
  return std::make_shared<SentencePieceTokenizer>(serialized_model_proto);
}

}  // namespace kveval
