// A tokenizer's definition, as model files give it: a GGUF file's metadata or a tokenizer.json fill one in,
// and make_tokenizer() turns it into a Tokenizer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer.h"

namespace kveval {

// Several times what real models have; tokenizers take time or memory beyond the file's size from these on.
// The longest piece known has 256 bytes (SentencePiece matches pieces in time quadratic in their length),
// Gemma 3 has the most merges, 514,906.
inline constexpr size_t kMaxPieces = 1 << 20;
inline constexpr size_t kMaxPieceBytes = 1024;
inline constexpr size_t kMaxMerges = 1 << 21;
inline constexpr std::string_view kSpaceMark = "\u2581";  // a space, in SentencePiece's pieces

// The numbers are SentencePiece's, and GGUF's.
enum class PieceKind : uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,       // special: only a template's literals may hold one
  user_defined = 4,  // llama: a text matched before any merge. gpt2: special, as control, but decoded
  unused = 5,
  byte = 6,  // llama: <0x00> ... <0xFF>
};

// Where a SentencePiece model is shown a space that the text does not have.
enum class SpacePrefix {
  none,
  every_text,       // before each text between special tokens
  every_bare_text,  // the same, where it does not begin with a space
  first_bare_text,  // only at the beginning of a prompt, where it does not begin with a space
};

struct Vocabulary {
  std::string model;                // GGUF's names: "llama" is SentencePiece's BPE, "gpt2" byte-level BPE
  std::string pre_tokenizer;        // gpt2: "gpt-2", "smollm", "llama-bpe" or "qwen2"
  std::vector<std::string> pieces;  // by id. gpt2: normal ones in the byte alphabet, others as they read
  std::vector<PieceKind> kinds;     // as many
  std::vector<float> scores;        // llama: as many, the highest is merged first; gpt2: none
  std::vector<std::string> merges;  // gpt2: "left right", the first is merged first; llama: none
  std::optional<Token> bos, eos, unknown;
  std::optional<Token> byte_unknown;  // gpt2: stands for a byte that has no piece; unset: it is left out

  // Unset: what models of this kind do. GGUF files leave most of these out.
  std::optional<bool> add_bos;        // llama and llama-bpe: yes; others: no
  std::optional<SpacePrefix> prefix;  // llama: every_text; gpt2: none
  // gpt2: a text that is a piece is that piece. llama-bpe: yes; others: no
  std::optional<bool> ignore_merges;
  std::optional<bool> nfc;  // gpt2: text is normalized to NFC first. qwen2: yes; others: no
};

// Throws Error{bad_file} naming the number.
PieceKind piece_kind(int64_t number);

// The id of a piece that reads so; none when there is none. Looks at all of them.
std::optional<Token> find_piece(const Vocabulary& vocabulary, std::string_view text);

// "<0x41>" -> 0x41; none for what is not written so.
std::optional<uint8_t> byte_of_piece(std::string_view piece);

// Unused pieces up to `size`: checkpoints pad their embedding.
void pad(Vocabulary& vocabulary, size_t size);

// Throws Error{bad_file}, naming the first thing that is wrong, when sizes disagree, ids are out of range, a
// piece is empty, too long, no UTF-8 or there twice, a score is not finite, or the model is of a kind that
// kveval does not know.
void check(const Vocabulary& vocabulary);

// XXH3-128 of every field, 32 hex digits.
std::string hash_of(const Vocabulary& vocabulary);

// Checks first. bos() is empty for a model that wants none.
std::shared_ptr<const Tokenizer> make_tokenizer(const Vocabulary& vocabulary);

}  // namespace kveval
