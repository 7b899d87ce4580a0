// Any bytes are encoded by every pre-tokenizer, and read back as they were where nothing normalizes them.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "engine/text/vocabulary.h"
#include "tests/engine/small_vocabularies.h"

namespace {

using namespace kveval;

std::shared_ptr<const Tokenizer> tokenizer_of(const char* pre_tokenizer, bool nfc) {
  Vocabulary vocabulary = byte_level_vocabulary(
      pre_tokenizer,
      {{" ", "t"}, {"h", "e"}, {" t", "he"}, {" ", " "}, {"\n", "\n"}, {"\xc3", "\xa9"}, {"\xcc", "\x81"}});
  vocabulary.nfc = nfc;
  return make_tokenizer(vocabulary);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const std::shared_ptr<const Tokenizer> kExact[] = {
      tokenizer_of("gpt-2", false), tokenizer_of("smollm", false), tokenizer_of("llama-bpe", false),
      tokenizer_of("qwen2", false)};
  static const std::shared_ptr<const Tokenizer> kNormalizing = tokenizer_of("qwen2", true);
  const std::string text(reinterpret_cast<const char*>(bytes), size);
  for (const auto& tokenizer : kExact)
    if (tokenizer->decode(tokenizer->encode(text)) != text) std::abort();
  const std::string normalized = kNormalizing->decode(kNormalizing->encode(text));
  if (kNormalizing->decode(kNormalizing->encode(normalized)) != normalized) std::abort();
  return 0;
}
