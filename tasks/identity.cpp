#include "tasks/identity.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "engine/hash.h"

namespace kveval {
namespace {

// JSON text separates the fields, so that no two groups share a name.
std::string name_of(const GroupIdentity& group, const nlohmann::json& what) {
  return nlohmann::json::array(
             {group.task, group.version, group.parameters, group.seed, group.length, group.haystack, what})
      .dump();
}

}  // namespace

std::string item_key(const GroupIdentity& group, int index) { return hash_hex(name_of(group, index)); }

uint64_t sub_seed(const GroupIdentity& group, std::string_view purpose) {
  const std::string hash = hash_hex(name_of(group, purpose));
  uint64_t seed = 0;
  std::from_chars(hash.data(), hash.data() + 16, seed, 16);
  return seed;
}

std::string prompt_sha(const std::string& prefix_sha, std::span<const Token> question,
                       std::span<const Token> target) {
  return hash_hex(prefix_sha + hash_hex(question) + hash_hex(target));
}

}  // namespace kveval
