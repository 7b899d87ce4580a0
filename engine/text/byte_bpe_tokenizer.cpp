#include "engine/text/byte_bpe_tokenizer.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <array>
#include <bit>
#include <cstdlib>
#include <functional>
#include <queue>
#include <unordered_map>
#include <utility>

#include "engine/error.h"
#include "engine/quote.h"
#include "engine/text/pre_tokenizer.h"
#include "engine/text/special_tokens.h"
#include "engine/text/utf8.h"

namespace kveval {
namespace {

constexpr Token kNone = -1;
constexpr size_t kLongestPiece = size_t{1} << 31;

bool is_printable_latin1(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// GPT-2's alphabet: printable bytes stand for themselves, the others for U+0100, U+0101, ... in order.
struct ByteAlphabet {
  std::array<std::string, 256> characters;
  std::unordered_map<std::string_view, uint8_t> bytes;

  ByteAlphabet() {
    char32_t next = 256;
    for (int byte = 0; byte < 256; ++byte) {
      append_utf8(characters[size_t(byte)], is_printable_latin1(byte) ? char32_t(byte) : next++);
      bytes.emplace(characters[size_t(byte)], uint8_t(byte));
    }
  }

  // The bytes that `piece` stands for; nothing when it has a character of another alphabet.
  std::optional<std::string> read(std::string_view piece) const {
    std::string text;
    while (!piece.empty()) {
      const size_t length = first_character(piece);
      const auto found = bytes.find(piece.substr(0, length));
      if (found == bytes.end()) return std::nullopt;
      text += char(found->second);
      piece.remove_prefix(length);
    }
    return text;
  }
};

const ByteAlphabet& byte_alphabet() {
  static const ByteAlphabet kAlphabet;
  return kAlphabet;
}

struct Merge {
  uint32_t rank;
  Token product;
};

// The merge of each pair of ids, in open addressing: the table is looked up twice for each byte of a text.
class MergeTable {
 public:
  explicit MergeTable(size_t merges) : slots_(std::bit_ceil(merges + merges / 2 + 1)) {}

  // False when the pair is there already.
  bool add(Token left, Token right, Merge merge) {
    Slot& slot = slots_[place(key_of(left, right))];
    if (slot.key != kFree) return false;
    slot = {key_of(left, right), merge};
    return true;
  }

  const Merge* find(Token left, Token right) const {
    const Slot& slot = slots_[place(key_of(left, right))];
    return slot.key == kFree ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};  // no pair: ids are not negative
  struct Slot {
    uint64_t key = kFree;
    Merge merge{};
  };

  static uint64_t key_of(Token left, Token right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

  // Where the key is or would be; a third of the slots is always free.
  size_t place(uint64_t key) const {
    size_t at = size_t(key * 0x9E3779B97F4A7C15u >> 20) & (slots_.size() - 1);
    while (slots_[at].key != key && slots_[at].key != kFree) at = (at + 1) & (slots_.size() - 1);
    return at;
  }

  std::vector<Slot> slots_;
};

// NFC leaves every character below U+0300 alone: their bytes are all below 0xCC.
bool is_surely_nfc(std::string_view text) {
  for (const char c : text)
    if (static_cast<unsigned char>(c) >= 0xCC) return false;
  return true;
}

std::string to_nfc(std::string_view text) {
  uint8_t* normalized = nullptr;
  const auto length = utf8proc_map(reinterpret_cast<const uint8_t*>(text.data()), ptrdiff_t(text.size()),
                                   &normalized, utf8proc_option_t(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<uint8_t, decltype(&std::free)> owner(normalized, &std::free);
  if (length < 0)
    throw Error(ErrorKind::run, fmt::format("a text cannot be normalized: {}", utf8proc_errmsg(length)));
  return {reinterpret_cast<const char*>(normalized), size_t(length)};
}

// One piece while it is merged. Kept between pieces for its memory.
class Merger {
 public:
  explicit Merger(const MergeTable& merges) : merges_(merges) {}

  void begin() { symbols_.clear(); }
  void add(Token id) {
    const auto at = uint32_t(symbols_.size());
    symbols_.push_back({id, at - 1, at + 1});
  }

  // Merges the pair of lowest rank, the leftmost of equals, until no pair is left.
  void merge() {
    for (uint32_t i = 0; i + 1 < symbols_.size(); ++i) consider(i);
    while (!candidates_.empty()) {
      const auto rank = uint32_t(candidates_.top() >> 32), at = uint32_t(candidates_.top());
      candidates_.pop();
      // Either side may have merged meanwhile.
      const Merge* const best = merge_at(at);
      if (!best || best->rank != rank) continue;
      Symbol& left = symbols_[at];
      Symbol& right = symbols_[left.next];
      left.id = best->product;
      right.id = kNone;
      left.next = right.next;
      if (left.next < symbols_.size()) {
        symbols_[left.next].previous = at;
        consider(at);
      }
      if (at > 0) consider(left.previous);
    }
  }

  void append_to(Tokens& tokens) const {
    for (size_t i = 0; i < symbols_.size(); i = symbols_[i].next) tokens.push_back(symbols_[i].id);
  }

 private:
  struct Symbol {
    Token id;                 // kNone once it is part of the one before
    uint32_t previous, next;  // next is the size at the end; the first is never merged away
  };

  const Merge* merge_at(uint32_t left) const {
    const Symbol& symbol = symbols_[left];
    if (symbol.id == kNone || symbol.next >= symbols_.size()) return nullptr;
    return merges_.find(symbol.id, symbols_[symbol.next].id);
  }

  void consider(uint32_t left) {
    if (const Merge* const merge = merge_at(left)) candidates_.push(uint64_t(merge->rank) << 32 | left);
  }

  const MergeTable& merges_;
  std::vector<Symbol> symbols_;
  // Rank and position of the left side in one number: a quarter of the time of a struct.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> candidates_;
};

class ByteBpeTokenizer : public Tokenizer {
 public:
  explicit ByteBpeTokenizer(const Vocabulary& vocabulary)
      : definition_(pre_tokenizer_named(vocabulary.pre_tokenizer)),
        pre_tokenizer_(definition_),
        nfc_(vocabulary.nfc.value_or(definition_.nfc)),
        eos_(vocabulary.eos),
        hash_(hash_of(vocabulary)),
        merges_(vocabulary.merges.size()) {
    if (vocabulary.prefix.value_or(SpacePrefix::none) != SpacePrefix::none)
      throw bad("wants a space before a text, which kveval does not know for byte-level BPE");
    if (vocabulary.add_bos.value_or(definition_.add_bos)) {
      if (!vocabulary.bos) throw bad("wants a BOS token and names none");
      bos_ = vocabulary.bos;
    }
    read_pieces(vocabulary);
    read_merges(vocabulary);
    if (vocabulary.ignore_merges.value_or(definition_.ignore_merges))
      for (size_t id = 0; id < texts_.size(); ++id)
        if (vocabulary.kinds[id] == PieceKind::normal) whole_.emplace(texts_[id], Token(id));
  }

  Tokens encode(std::string_view text) const override {
    Tokens tokens;
    Merger merger(merges_);
    while (!text.empty()) {
      const size_t valid = valid_utf8_prefix(text);
      encode_utf8(text.substr(0, valid), merger, tokens);
      text.remove_prefix(valid);
      if (text.empty()) break;
      encode_piece(text.substr(0, 1), merger, tokens);
      text.remove_prefix(1);
    }
    return tokens;
  }

  Tokens encode_prompt(std::span<const PromptPart> parts) const override {
    return encode_runs(specials_, parts, [this](const std::string& text, bool) { return encode(text); });
  }

  std::string decode(const Tokens& tokens) const override {
    std::string text;
    for (const Token token : tokens) {
      check_token(token, vocabulary_size());
      text += texts_[size_t(token)];
    }
    return text;
  }

  std::string piece(Token token) const override {
    const std::string_view special = specials_.text_of(token);
    return special.empty() ? decode({token}) : std::string(special);
  }

  int vocabulary_size() const override { return int(texts_.size()); }
  std::optional<Token> bos() const override { return bos_; }
  std::optional<Token> eos() const override { return eos_; }
  std::string hash() const override { return hash_; }
  std::string kind() const override { return fmt::format("byte-level BPE ({})", definition_.name); }

 private:
  static Error bad(const std::string& what) {
    return Error(ErrorKind::bad_file, "the vocabulary " + what,
                 "Check that the model's tokenizer is complete and of its own version.");
  }

  void read_pieces(const Vocabulary& vocabulary) {
    texts_.resize(vocabulary.pieces.size());
    bytes_.fill(vocabulary.byte_unknown.value_or(kNone));
    for (size_t id = 0; id < texts_.size(); ++id) {
      const std::string& piece = vocabulary.pieces[id];
      switch (vocabulary.kinds[id]) {
        case PieceKind::normal: {
          auto text = byte_alphabet().read(piece);
          if (!text) throw bad(fmt::format("has a piece outside the byte alphabet, {} {}", id, quote(piece)));
          if (text->size() == 1) bytes_[static_cast<unsigned char>(text->front())] = Token(id);
          texts_[id] = std::move(*text);
          break;
        }
        case PieceKind::user_defined:
          texts_[id] = piece;
          specials_.add(piece, Token(id));
          break;
        case PieceKind::control:
        case PieceKind::unknown: specials_.add(piece, Token(id)); break;
        case PieceKind::unused: break;
        case PieceKind::byte:
          throw bad(fmt::format("is byte-level and has a byte piece, {} {}", id, quote(piece)));
      }
    }
  }

  void read_merges(const Vocabulary& vocabulary) {
    std::unordered_map<std::string_view, Token> ids;
    ids.reserve(vocabulary.pieces.size());
    for (size_t id = 0; id < vocabulary.pieces.size(); ++id)
      if (vocabulary.kinds[id] == PieceKind::normal) ids.emplace(vocabulary.pieces[id], Token(id));
    for (size_t rank = 0; rank < vocabulary.merges.size(); ++rank) {
      const std::string_view merge = vocabulary.merges[rank];
      const size_t space = merge.find(' ', 1);
      if (space == std::string_view::npos || space + 1 == merge.size())
        throw bad(fmt::format("has a merge that is no pair, {} {}", rank, quote(merge)));
      const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
      const auto id_of = [&](std::string_view piece) {
        const auto found = ids.find(piece);
        if (found == ids.end())
          throw bad(fmt::format("has no piece {}, which merge {} names", quote(piece), rank));
        return found->second;
      };
      const Token left_id = id_of(left), right_id = id_of(right);
      const Token product = id_of(std::string(left).append(right));
      if (!merges_.add(left_id, right_id, {uint32_t(rank), product}))
        throw bad(fmt::format("has the merge {} twice", quote(merge)));
    }
  }

  void encode_utf8(std::string_view text, Merger& merger, Tokens& tokens) const {
    std::string normalized;
    if (nfc_ && !is_surely_nfc(text)) {
      normalized = to_nfc(text);
      text = normalized;
    }
    for (const std::string_view piece : pre_tokenizer_.split(text)) encode_piece(piece, merger, tokens);
  }

  void encode_piece(std::string_view piece, Merger& merger, Tokens& tokens) const {
    if (piece.size() > kLongestPiece)
      throw Error(ErrorKind::usage,
                  fmt::format("a text has {} bytes without a place to cut it", piece.size()));
    if (!whole_.empty())
      if (const auto found = whole_.find(piece); found != whole_.end()) {
        tokens.push_back(found->second);
        return;
      }
    merger.begin();
    for (const char c : piece)
      if (const Token id = bytes_[static_cast<unsigned char>(c)]; id != kNone) merger.add(id);
    merger.merge();
    merger.append_to(tokens);
  }

  const PreTokenizerDefinition& definition_;
  PreTokenizer pre_tokenizer_;
  bool nfc_;
  std::optional<Token> bos_, eos_;
  std::string hash_;
  std::vector<std::string> texts_;  // what each token reads as
  std::array<Token, 256> bytes_{};  // id of the piece that is this byte
  MergeTable merges_;
  std::unordered_map<std::string_view, Token> whole_;  // views into texts_; empty unless merges are ignored
  SpecialTokens specials_;
};

}  // namespace

std::shared_ptr<const Tokenizer> make_byte_bpe_tokenizer(const Vocabulary& vocabulary) {
  return std::make_shared<ByteBpeTokenizer>(vocabulary);
}

}  // namespace kveval
