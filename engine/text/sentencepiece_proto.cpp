#include "engine/text/sentencepiece_proto.h"

#include <fmt/format.h>

#include <bit>
#include <bitset>
#include <cstdint>

#include "engine/error.h"
#include "engine/quote.h"

namespace kveval {
namespace {

Error bad(const std::string& what) {
  return Error(ErrorKind::bad_file, "the SentencePiece vocabulary " + what,
               "Check that the model's tokenizer is complete.");
}

// Protocol buffers' wire format: a field is its number and type, then a varint, four bytes, or a length and
// bytes.
class ProtoWriter {
 public:
  void varint(int field, uint64_t value) {
    tag(field, 0);
    raw_varint(value);
  }
  void real(int field, float value) {
    tag(field, 5);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += char(bits >> shift & 0xFF);
  }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    raw_varint(value.size());
    bytes_ += value;
  }
  void clear() { bytes_.clear(); }
  const std::string& written() const { return bytes_; }

 private:
  void tag(int field, int type) { raw_varint(uint64_t(field) << 3 | uint64_t(type)); }
  void raw_varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += char(0x80 | (value & 0x7F));
    bytes_ += char(value);
  }

  std::string bytes_;
};

// Gemma's GGUF files have their runs of spaces as spaces; the library looks for them after it replaced each
// one.
std::string with_marks(std::string_view piece) {
  std::string out;
  for (const char c : piece)
    if (c == ' ')
      out += kSpaceMark;
    else
      out += c;
  return out;
}

// The library insists on one piece of the kind `unknown`. Gemma's GGUF files call theirs a control piece, and
// name it by its id.
size_t unknown_piece(const Vocabulary& vocabulary) {
  std::optional<size_t> unknown;
  if (vocabulary.unknown) unknown = size_t(*vocabulary.unknown);
  for (size_t id = 0; id < vocabulary.kinds.size(); ++id) {
    if (vocabulary.kinds[id] != PieceKind::unknown) continue;
    if (unknown && *unknown != id) throw bad(fmt::format("has two unknown pieces, {} and {}", *unknown, id));
    unknown = id;
  }
  if (!unknown) throw bad("has no unknown piece");
  return *unknown;
}

void check_bytes(const Vocabulary& vocabulary) {
  std::bitset<256> present;
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    if (vocabulary.kinds[id] != PieceKind::byte) continue;
    const auto byte = byte_of_piece(vocabulary.pieces[id]);
    if (!byte) throw bad(fmt::format("has {} as a byte piece, {}", quote(vocabulary.pieces[id]), id));
    present.set(*byte);
  }
  if (!present.all())
    throw bad(
        fmt::format("has pieces for {} of the 256 bytes, so that some text would be lost", present.count()));
}

}  // namespace

std::string sentencepiece_proto(const Vocabulary& vocabulary) {
  const size_t unknown = unknown_piece(vocabulary);
  check_bytes(vocabulary);

  ProtoWriter model, piece;
  for (size_t id = 0; id < vocabulary.pieces.size(); ++id) {
    const PieceKind kind = id == unknown ? PieceKind::unknown : vocabulary.kinds[id];
    const bool is_text = kind == PieceKind::normal || kind == PieceKind::user_defined;
    piece.clear();
    piece.bytes(1, is_text ? with_marks(vocabulary.pieces[id]) : vocabulary.pieces[id]);
    piece.real(2, vocabulary.scores[id]);
    piece.varint(3, uint64_t(kind));
    model.bytes(1, piece.written());
  }

  ProtoWriter trainer;
  trainer.varint(3, 2);  // model_type: BPE
  trainer.varint(4, vocabulary.pieces.size());
  trainer.varint(35, 1);  // byte_fallback
  trainer.varint(40, unknown);
  trainer.bytes(45, vocabulary.pieces[unknown]);
  model.bytes(2, trainer.written());

  ProtoWriter normalizer;
  normalizer.bytes(1, "identity");
  normalizer.varint(3, 0);  // add_dummy_prefix
  normalizer.varint(4, 0);  // remove_extra_whitespaces
  normalizer.varint(5, 1);  // escape_whitespaces
  model.bytes(3, normalizer.written());
  return model.written();
}

}  // namespace kveval
