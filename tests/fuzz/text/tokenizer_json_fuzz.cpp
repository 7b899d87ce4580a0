// Any bytes are a tokenizer.json that encodes, or an Error{bad_file}.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "engine/text/tokenizer_json.h"
#include "tests/fuzz/may_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace kveval;
  const std::string_view json(reinterpret_cast<const char*>(bytes), size);
  fuzz::may_refuse([&] {
    const auto tokenizer = make_tokenizer(read_tokenizer_json(json));
    tokenizer->decode(tokenizer->encode("the  \n 12 \u00e9"));
  });
  fuzz::may_refuse([&] { read_tokenizer_config(json); });
  return 0;
}
