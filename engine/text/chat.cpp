#include "engine/text/chat.h"

#include <nlohmann/json.hpp>

#include "engine/hash.h"

namespace kveval {

ChatTemplate plain_chat() { return {.family = "plain", .before_prompt = "", .before_answer = ""}; }

std::string template_hash(const ChatTemplate& chat) {
  return hash_hex(nlohmann::json::array({chat.family, chat.before_prompt, chat.before_answer}).dump());
}

}  // namespace kveval
