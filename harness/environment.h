// Where and by what a run was made: recorded for information, never part of a result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kveval {

struct Environment {
  std::string tool_version;       // "0.1.0"
  std::string git_sha;            // of the source this program was built from; empty outside a checkout
  std::optional<bool> git_dirty;  // likewise
  std::string host;
  std::string cpu;
  std::string argv_json;
  int64_t pid = 0;
};

Environment this_environment(const std::vector<std::string>& argv);

int64_t now_ms();  // Unix time

// "20261129-184233-3fa9": UTC, then four random hex digits, so that two runs of one second differ.
std::string make_run_id(int64_t unix_ms);

size_t peak_rss_bytes();  // the most memory this process has held

// Whether another process of this host with that id runs this same program.
bool is_running_elsewhere(int64_t pid);

}  // namespace kveval
