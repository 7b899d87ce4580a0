#include "engine/text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/quote.h"
#include "engine/text/byte_bpe_tokenizer.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/utf8.h"

namespace kveval {
namespace {

Error bad(const std::string& what, std::string hint = {}) {
  return Error(ErrorKind::bad_file, "the vocabulary " + what, std::move(hint));
}

void check_id(const char* name, const std::optional<Token>& id, size_t pieces) {
  if (id && (*id < 0 || size_t(*id) >= pieces))
    throw bad(fmt::format("has {} as its {} token, but {} pieces", *id, name, pieces));
}

void check_count(const char* what, size_t count, size_t expected) {
  if (count != expected) throw bad(fmt::format("has {} {} where it should have {}", count, what, expected));
}

void check_pieces(const std::vector<std::string>& pieces) {
  std::unordered_map<std::string_view, size_t> seen;
  seen.reserve(pieces.size());
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (pieces[id].empty()) throw bad(fmt::format("has an empty piece, {}", id));
    if (pieces[id].size() > kMaxPieceBytes)
      throw bad(fmt::format("has a piece of {} bytes, {}, at most {} can be", pieces[id].size(), id,
                            kMaxPieceBytes));
    if (!is_utf8(pieces[id]))
      throw bad(fmt::format("has a piece that is no UTF-8, {} {}", id, quote(pieces[id])));
    const auto [first, is_new] = seen.emplace(pieces[id], id);
    if (!is_new)
      throw bad(fmt::format("has the piece {} twice, as {} and {}", quote(pieces[id]), first->second, id));
  }
}

// Lengths first, so that no two definitions are the same bytes.
class Bytes {
 public:
  void add(std::string_view text) {
    add(text.size());
    bytes_ += text;
  }
  void add(const std::vector<std::string>& texts) {
    add(texts.size());
    for (const std::string& text : texts) add(text);
  }
  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void add(Number number) { bytes_.append(reinterpret_cast<const char*>(&number), sizeof number); }
  template <class Number>
  requires std::is_arithmetic_v<Number> || std::is_enum_v<Number>
  void add(const std::vector<Number>& numbers) {
    add(numbers.size());
    for (const Number number : numbers) add(number);
  }
  template <class Value>
  void add(const std::optional<Value>& value) {
    add(value.has_value());
    if (value) add(*value);
  }
  const std::string& all() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace

PieceKind piece_kind(int64_t number) {
  if (number < int64_t(PieceKind::normal) || number > int64_t(PieceKind::byte))
    throw bad(fmt::format("has a piece of kind {}, which there is not", number));
  return PieceKind(number);
}

std::optional<Token> find_piece(const Vocabulary& vocabulary, std::string_view text) {
  const auto found = std::ranges::find(vocabulary.pieces, text);
  if (found == vocabulary.pieces.end()) return std::nullopt;
  return Token(found - vocabulary.pieces.begin());
}

std::optional<uint8_t> byte_of_piece(std::string_view piece) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return std::nullopt;
  const size_t high = kDigits.find(piece[3]), low = kDigits.find(piece[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return uint8_t(high * 16 + low);
}

void pad(Vocabulary& vocabulary, size_t size) {
  if (size > kMaxPieces)
    throw bad(fmt::format("is asked to have {} pieces, at most {} can be", size, kMaxPieces));
  for (size_t id = vocabulary.pieces.size(); id < size; ++id) {
    vocabulary.pieces.push_back(fmt::format("[PAD{}]", id));
    vocabulary.kinds.push_back(PieceKind::unused);
    if (!vocabulary.scores.empty()) vocabulary.scores.push_back(0);
  }
}

void check(const Vocabulary& vocabulary) {
  const size_t pieces = vocabulary.pieces.size();
  const bool sentencepiece = vocabulary.model == "llama";
  if (!sentencepiece && vocabulary.model != "gpt2")
    throw Error(ErrorKind::bad_file,
                fmt::format("there is no tokenizer for vocabularies of the kind {}", quote(vocabulary.model)),
                "kveval knows llama (SentencePiece BPE) and gpt2 (byte-level BPE).");
  if (pieces == 0) throw bad("is empty");
  if (pieces > kMaxPieces) throw bad(fmt::format("has {} pieces, at most {} can be", pieces, kMaxPieces));
  check_count("kinds of pieces", vocabulary.kinds.size(), pieces);
  check_count("scores", vocabulary.scores.size(), sentencepiece ? pieces : 0);
  if (sentencepiece) check_count("merges", vocabulary.merges.size(), 0);
  if (vocabulary.merges.size() > kMaxMerges)
    throw bad(fmt::format("has {} merges, at most {} can be", vocabulary.merges.size(), kMaxMerges));
  for (size_t id = 0; id < vocabulary.scores.size(); ++id)
    if (!std::isfinite(vocabulary.scores[id]))
      throw bad(fmt::format("has a score that is no number, of piece {}", id));
  check_id("BOS", vocabulary.bos, pieces);
  check_id("EOS", vocabulary.eos, pieces);
  check_id("unknown", vocabulary.unknown, pieces);
  check_id("unknown", vocabulary.byte_unknown, pieces);
  check_pieces(vocabulary.pieces);
}

std::string hash_of(const Vocabulary& vocabulary) {
  Bytes bytes;
  bytes.add(vocabulary.model);
  bytes.add(vocabulary.pre_tokenizer);
  bytes.add(vocabulary.pieces);
  bytes.add(vocabulary.kinds);
  bytes.add(vocabulary.scores);
  bytes.add(vocabulary.merges);
  bytes.add(vocabulary.bos);
  bytes.add(vocabulary.eos);
  bytes.add(vocabulary.unknown);
  bytes.add(vocabulary.byte_unknown);
  bytes.add(vocabulary.add_bos);
  bytes.add(vocabulary.prefix);
  bytes.add(vocabulary.ignore_merges);
  bytes.add(vocabulary.nfc);
  return hash_hex(bytes.all());
}

std::shared_ptr<const Tokenizer> make_tokenizer(const Vocabulary& vocabulary) {
  check(vocabulary);
  return vocabulary.model == "llama" ? make_sentencepiece_tokenizer(vocabulary)
                                     : make_byte_bpe_tokenizer(vocabulary);
}

}  // namespace kveval
