// The shape of the source tree as rules over (path, text) pairs: which folder may include which, how a header
// begins, how long a file may be. Pure functions, so that each rule is itself tested on trees that break it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kveval::structure {

// Path from the repository root ("engine/kv/cache.h") to content.
using Tree = std::map<std::string, std::string>;
// One sentence per violation: the file first, then what is wrong. Empty: the tree is as it should be.
using Violations = std::vector<std::string>;

struct Include {
  std::string target;
  bool quoted = false;  // "..." as against <...>
};
std::vector<Include> includes_of(std::string_view text);

// Every include follows the arrows engine <- tasks <- harness <- reports (harness/store.h only) <-
// harness/commands, names a file of the tree from its root, and CUDA, SQLite and the command line parser stay
// in their folders.
Violations check_arrows(const Tree& tree);

// Headers begin with a comment, directly followed by #pragma once as the first line of code.
Violations check_headers(const Tree& tree);

// No header includes itself, directly or through others.
Violations check_cycles(const Tree& tree);

// No file is longer than `limit` lines. `exempt`: path to the reason why it may be; an exemption nobody needs
// any more is a violation too.
Violations check_lengths(const Tree& tree, size_t limit, const std::map<std::string, std::string>& exempt);

}  // namespace kveval::structure
