// The hay: text in pieces of about a sentence, as much as is wanted. White space at a piece's end leads to
// the next.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace kveval {

using PieceSource = std::function<std::string()>;

// Sentences from the word bank's templates, in paragraphs, without end; the same seed gives the same text.
PieceSource generated_hay(uint64_t seed);

// A file of the user's, by path and XXH3-128 of its bytes.
struct TextFile {
  std::string path;
  std::string hash;  // 32 hex digits; empty: not read yet
};

// Fills in the hash. Throws Error{bad_file}: cannot be read, larger than 256 MiB, or its name is not UTF-8.
TextFile identify(const std::string& path);

// The files' text, one after the other, byte order marks and leading white space left out. Throws
// Error{bad_file} naming the file: missing, not UTF-8 (with the byte offset), changed since its hash was
// taken; or when there is nothing but white space.
std::string read_hay(const std::vector<TextFile>& files);

// Cuts after sentence ends and line ends; what is longer than 400 bytes is cut at white space, or else
// between characters. Joined, the pieces are the text.
std::vector<std::string> split_hay(std::string_view text);

// The user's pieces from a seeded start, over and over. pieces must not be empty.
PieceSource repeated_hay(std::vector<std::string> pieces, uint64_t seed);

// How often each word (run of ASCII letters, lower-cased) stands in a text.
using WordCounts = std::unordered_map<std::string, size_t>;
WordCounts count_words(std::string_view text);

}  // namespace kveval
