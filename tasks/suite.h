// A suite: task families x lengths x haystacks x seed, as JSON (comments allowed).
//
//   { "name": "niah", "version": 1, "seed": 1,
//     "families": [ { "task": "niah", "lengths": ["8k", "32k"], "haystacks": 10, "parameters": { "needles": 4
//     } } ] }
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tasks/task.h"

namespace kveval {

struct Family {
  std::string task;
  std::vector<int> lengths;  // tokens, as given
  int haystacks = 10;
  std::string parameters;  // canonical JSON, defaults filled in
};

struct Suite {
  std::string name;
  int version = 1;
  uint64_t seed = 1;
  std::vector<Family> families;
};

// A built-in name or a path to a JSON file. Throws Error{usage} listing the built-in names, or
// Error{bad_file} with the JSON position or the member that is wrong.
Suite load_suite(std::string_view name_or_path);
std::vector<std::string> builtin_suites();

std::string to_json(const Suite& suite);  // canonical: what the run stores and resumes from
Suite suite_from_json(std::string_view json);
std::string suite_hash(const Suite& suite);  // XXH3-128 of to_json, 32 hex digits

// Groups in the order they run: family, then haystack, then length, so that an interrupted run has some of
// every cell.
std::vector<GroupSpec> groups_of(const Suite& suite);

// "8k" -> 8192, "1m" -> 1048576, "5000" -> 5000. Throws Error{usage}.
int parse_length(std::string_view text);
std::vector<int> parse_lengths(std::string_view text);  // "8k,32k"
std::string length_name(int tokens);                    // 8192 -> "8k"

}  // namespace kveval
