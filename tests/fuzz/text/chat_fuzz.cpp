// Any text is a chat template that renders, or an Error{bad_file}.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "engine/text/chat.h"
#include "tests/fuzz/may_refuse.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace kveval;
  const std::string_view jinja(reinterpret_cast<const char*>(bytes), size);
  fuzz::may_refuse([&] {
    const ChatTemplate chat = detect_chat(jinja, "</s>");
    if (render(chat, std::nullopt, {{"Q", "A"}, {"R", ""}}).size() != 8) std::abort();
    template_hash(chat);
  });
  return 0;
}
