// Any text is a chat template that renders, or an Error{bad_file}.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/error.h"
#include "engine/text/chat.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace kveval;
  try {
    const ChatTemplate chat =
        detect_chat(std::string_view(reinterpret_cast<const char*>(bytes), size), "</s>");
    if (render(chat, std::nullopt, {{"Q", "A"}, {"R", ""}}).size() != 8) std::abort();
    template_hash(chat);
  } catch (const Error& error) {
    if (error.kind != ErrorKind::bad_file) std::abort();
  }
  return 0;
}
