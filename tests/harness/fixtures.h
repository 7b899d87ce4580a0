// What the tests of the harness share.
#pragma once

#include <SQLiteCpp/SQLiteCpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/error.h"
#include "engine/hash.h"
#include "engine/text/tokenizer.h"
#include "harness/store.h"

namespace kveval::testing {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    // In memory where there is such a folder: thousands of commits then wait for no disk.
    const fs::path memory = "/dev/shm";
    const fs::path parent = access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
    std::string name = (parent / "kveval-test-XXXXXX").string();
    path_ = mkdtemp(name.data());
    fs::permissions(path_, fs::perms::all);  // also for the user that AsNobody becomes
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Root may write anywhere; tests of permissions give that up for a while.
class AsNobody {
 public:
  AsNobody() : was_root_(geteuid() == 0) {
    if (was_root_ && seteuid(65534) != 0) std::abort();
  }
  ~AsNobody() {
    if (was_root_ && seteuid(0) != 0) std::abort();
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  bool was_root_;
};

// One token a byte, and a BOS: whatever is glued together tokenizes alike.
class ByteTokenizer : public Tokenizer {
 public:
  Tokens encode(std::string_view text) const override {
    Tokens tokens;
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string decode(const Tokens& tokens) const override {
    std::string text;
    for (const Token token : tokens) text += static_cast<char>(token);
    return text;
  }
  int vocabulary_size() const override { return 257; }
  std::optional<Token> bos() const override { return 256; }
  std::optional<Token> eos() const override { return std::nullopt; }
  std::string hash() const override { return hash_hex("bytes"); }
};

// The error that `action` throws; fails the test when it throws none.
inline Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) { return error; }
  ADD_FAILURE() << "no Error was thrown";
  return Error(ErrorKind::run, "nothing was thrown");
}

// Every row of every table as text, times and what differs between any two processes left out: what must be
// equal between an interrupted and an unbroken run. Row ids are in.
inline std::string dump(const fs::path& path) {
  SQLite::Database database(path.string(), SQLite::OPEN_READONLY);
  const std::vector<std::string> tables = {"run",       "arm",    "haystack", "item",
                                           "run_group", "sample", "output",   "diagnostic"};
  const std::vector<std::string> skipped = {"started_ms", "finished_ms", "heartbeat_ms", "pid",
                                            "milliseconds"};
  std::string text;
  std::string run_id;
  for (const std::string& table : tables) {
    SQLite::Statement query(database, "SELECT * FROM " + table + " ORDER BY 1, 2");
    while (query.executeStep()) {
      text += table;
      for (int c = 0; c < query.getColumnCount(); ++c) {
        const std::string name = query.getColumnName(c);
        if (std::find(skipped.begin(), skipped.end(), name) != skipped.end()) continue;
        std::string value = query.isColumnNull(c) ? "NULL" : query.getColumn(c).getString();
        if (table == "run" && name == "id") run_id = value;
        if (!run_id.empty() && value == run_id) value = "RUN";
        text += " " + name + "=" + value;
      }
      text += "\n";
    }
  }
  return text;
}

inline RunRecord example_run(const std::string& id, int64_t started_ms = 1000) {
  RunRecord run;
  run.id = id;
  run.suite = "niah";
  run.suite_json = R"({"name":"niah"})";
  run.suite_hash = "5017e";
  run.config_json = R"({"model":"fake"})";
  run.config_hash = "c0f1";
  run.started_ms = started_ms;
  run.heartbeat_ms = started_ms + 1;
  run.pid = 4242;
  run.seed = 0xFFFFFFFFFFFFFFFFU;
  run.model = "fake:size=1";
  run.model_hash = "30de1";
  run.tokenizer_hash = "70ce";
  run.template_hash = "";
  run.decoding_json = R"({"niah":{"max_tokens":8}})";
  run.compute = "float32";
  run.cache_mode = "as-you-go";
  run.tool_version = "0.1.0";
  run.git_sha = "abc";
  run.git_dirty = true;
  run.host = "here";
  run.cpu = "a CPU";
  run.simd = "avx2";
  run.argv_json = R"(["kveval","run"])";
  run.threads = 2;
  run.groups_planned = 3;
  return run;
}

inline std::vector<ArmRecord> example_arms() {
  ArmRecord base;
  base.position = 0;
  base.name = "fp16";
  base.baseline = true;
  base.profile_json = R"({"k":"fp16"})";
  base.profile_hash = "aa";
  base.k_format = base.v_format = "fp16";
  base.cache_bytes_per_token = 2048;
  ArmRecord other = base;
  other.position = 1;
  other.name = "e4m3";
  other.baseline = false;
  other.profile_hash = "bb";
  other.k_format = other.v_format = "e4m3";
  other.cache_bytes_per_token = 1024.5;
  return {base, other};
}

}  // namespace kveval::testing
