// Any bytes are encoded; text that is UTF-8 without the mark for a space reads back as it was.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/text/utf8.h"
#include "engine/text/vocabulary.h"
#include "tests/engine/small_vocabularies.h"

namespace {

using namespace kveval;

std::shared_ptr<const Tokenizer> tokenizer_of(SpacePrefix prefix) {
  Vocabulary vocabulary =
      sentencepiece_vocabulary({"_", "t", "h", "e", "\n", "th", "the", "_the", "\u00e9", "__", "\n\n"});
  for (size_t id = vocabulary.pieces.size() - 2; id < vocabulary.pieces.size(); ++id)
    vocabulary.kinds[id] = PieceKind::user_defined;
  vocabulary.prefix = prefix;
  return make_tokenizer(vocabulary);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const auto kBare = tokenizer_of(SpacePrefix::none),
                    kPrefixed = tokenizer_of(SpacePrefix::every_text);
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  const bool is_exact = is_utf8(text) && text.find("\u2581") == std::string::npos;
  for (const auto& tokenizer : {kBare, kPrefixed})
    if (tokenizer->decode(tokenizer->encode(text)) != text && is_exact) std::abort();
  return 0;
}
