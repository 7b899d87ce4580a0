// Any bytes are a tokenizer.json that encodes, or an Error{bad_file}.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/error.h"
#include "engine/text/tokenizer_json.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace kveval;
  const std::string_view json(reinterpret_cast<const char*>(bytes), size);
  try {
    const auto tokenizer = make_tokenizer(read_tokenizer_json(json));
    tokenizer->decode(tokenizer->encode("the  \n 12 \u00e9"));
  } catch (const Error& error) {
    if (error.kind != ErrorKind::bad_file) std::abort();
  }
  try {
    read_tokenizer_config(json);
  } catch (const Error& error) {
    if (error.kind != ErrorKind::bad_file) std::abort();
  }
  return 0;
}
