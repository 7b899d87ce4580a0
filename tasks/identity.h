// What makes a sample the same sample: hashes for names, and seeds derived from them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/text/tokenizer.h"

namespace kveval {

// Everything a group's content depends on besides the tokenizer. `parameters` is canonical JSON in which
// files stand by the hash of their content, so that moving a file changes nothing.
struct GroupIdentity {
  std::string_view task;
  int version = 0;
  std::string_view parameters;
  uint64_t seed = 0;
  int length = 0;
  int haystack = 0;
};

std::string item_key(const GroupIdentity& group, int index);

// A seed of its own for each purpose ("filler", "values"), so that drawing more for one never shifts another.
uint64_t sub_seed(const GroupIdentity& group, std::string_view purpose);

std::string prompt_sha(const std::string& prefix_sha, std::span<const Token> question,
                       std::span<const Token> target);

}  // namespace kveval
