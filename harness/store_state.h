// What the parts of Store share; included by store*.cpp only.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "harness/store.h"

namespace kveval {

struct Store::State {
  std::filesystem::path path;
  mutable SQLite::Database database;
  std::string notice;
  std::string owned_run;  // what begin_run or claim made ours
  int64_t owner_pid = 0;

  std::optional<int64_t> pid_if_owned(const std::string& run_id) const {
    return run_id == owned_run ? std::optional(owner_pid) : std::nullopt;
  }
};

// Says in one sentence what SQLite could not do. `opening`: a lock is then the file's fault, not the run's.
[[noreturn]] void throw_store_error(const SQLite::Exception& error, const std::filesystem::path& path,
                                    bool opening);

// Runs `body`; what SQLite throws comes out as Error.
template <class Body>
auto guarded(const std::filesystem::path& path, const Body& body) {
  try {
    return body();
  } catch (const SQLite::Exception& error) { throw_store_error(error, path, false); }
}

// Token ids as little-endian int32, and back. Throws Error{bad_file} for a length that is not a multiple
// of 4.
std::string pack_tokens(const std::vector<int32_t>& tokens);
std::vector<int32_t> unpack_tokens(std::string_view bytes, const std::filesystem::path& path);

std::string compress(std::string_view bytes);
// Throws Error{bad_file} for anything compress() did not write, or that claims more than 256 MiB.
std::string decompress(std::string_view bytes, const std::filesystem::path& path);

}  // namespace kveval
