#include "harness/commands/commands.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kveval {

Store open_store(const Context& context, Store::Mode mode) {
  Store store(context.db, mode);
  const std::string notice = store.notice();
  if (!notice.empty() && !context.quiet) fmt::print(stderr, "kveval: note: {}\n", notice);
  return store;
}

void print_json(const nlohmann::json& document) {
  fmt::print("{}\n", document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

bool use_color(const Context& context, std::FILE* stream) {
  if (context.color == "always") return true;
  if (context.color == "never") return false;
  const char* refused = std::getenv("NO_COLOR");
  if (refused != nullptr && *refused != '\0') return false;
  const char* terminal = std::getenv("TERM");
  if (terminal != nullptr && std::string_view(terminal) == "dumb") return false;
  return isatty(fileno(stream)) != 0;
}

}  // namespace kveval
