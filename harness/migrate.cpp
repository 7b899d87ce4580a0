#include "harness/migrate.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "embedded.h"
#include "engine/error.h"

namespace kveval {
namespace {

int user_version(SQLite::Database& database) { return database.execAndGet("PRAGMA user_version").getInt(); }

bool is_empty(SQLite::Database& database) {
  return database.execAndGet("SELECT count(*) FROM sqlite_schema").getInt() == 0;
}

// Name to (type, SQL) of everything a CREATE statement made; automatic indexes have no SQL.
std::map<std::string, std::pair<std::string, std::string>> objects(SQLite::Database& database) {
  std::map<std::string, std::pair<std::string, std::string>> found;
  SQLite::Statement query(database, "SELECT name, type, sql FROM sqlite_schema WHERE sql IS NOT NULL");
  while (query.executeStep()) {
    found[query.getColumn(0).getString()] = {query.getColumn(1).getString(), query.getColumn(2).getString()};
  }
  return found;
}

std::filesystem::path backup_path(const std::filesystem::path& path, int version) {
  std::filesystem::path backup = fmt::format("{}.v{}.backup", path.string(), version);
  for (int copy = 2; std::filesystem::exists(backup); ++copy) {
    backup = fmt::format("{}.v{}.backup-{}", path.string(), version, copy);
  }
  return backup;
}

// Steps are never edited. What one creates is, to the letter, what schema.sql of its version says.
constexpr std::string_view kAddSpeed = R"(CREATE TABLE speed(
  model_hash      TEXT NOT NULL,
  compute         TEXT NOT NULL,
  simd            TEXT NOT NULL,
  threads         INTEGER NOT NULL,
  host            TEXT NOT NULL,
  cpu             TEXT NOT NULL,
  profile         TEXT NOT NULL,    -- canonical name
  length          INTEGER NOT NULL, -- tokens of the prompt
  prefix_flops    REAL NOT NULL CHECK(prefix_flops > 0),
  prefill_seconds REAL NOT NULL CHECK(prefill_seconds > 0),
  decode_seconds  REAL NOT NULL CHECK(decode_seconds > 0), -- a token
  measured_ms     INTEGER NOT NULL,
  PRIMARY KEY(model_hash, compute, simd, threads, host, cpu, profile, length)
) STRICT, WITHOUT ROWID;
)";

}  // namespace

std::span<const std::string_view> migrations() {
  static constexpr std::string_view kSteps[] = {kAddSpeed};
  static_assert(std::size(kSteps) + 1 == kSchemaVersion);
  return kSteps;
}

void create_schema(SQLite::Database& database) {
  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  if (!is_empty(database)) return;
  database.exec(std::string(embedded::harness_schema_sql));
  database.exec(
      fmt::format("PRAGMA application_id = {}; PRAGMA user_version = {}", kApplicationId, kSchemaVersion));
  transaction.commit();
}

void migrate(SQLite::Database& database, const std::filesystem::path& path,
             std::span<const std::string_view> steps) {
  const int target = 1 + static_cast<int>(steps.size());
  const int found = user_version(database);
  if (found >= target) return;
  if (found < 1) {
    throw Error(ErrorKind::bad_file,
                fmt::format("'{}' has schema version {}, which no kveval wrote", path.string(), found),
                "choose another file with --db");
  }

  SQLite::Statement backup(database, "VACUUM INTO ?");
  backup.bind(1, backup_path(path, found).string());
  backup.exec();

  SQLite::Transaction transaction(database, SQLite::TransactionBehavior::IMMEDIATE);
  // Another process may have migrated while this one waited for the lock.
  for (int version = user_version(database); version < target; ++version) {
    database.exec(std::string(steps[static_cast<size_t>(version - 1)]));
  }
  database.exec(fmt::format("PRAGMA user_version = {}", target));
  transaction.commit();
}

void check_schema(SQLite::Database& database, const std::filesystem::path& path) {
  static const auto expected = [] {
    SQLite::Database fresh(":memory:", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    create_schema(fresh);
    return objects(fresh);
  }();
  const auto found = objects(database);
  for (const auto& [name, definition] : expected) {
    const auto it = found.find(name);
    if (it == found.end() || it->second != definition) {
      throw Error(ErrorKind::bad_file,
                  fmt::format("'{}' is damaged: its {} '{}' is {}", path.string(), definition.first, name,
                              it == found.end() ? "missing" : "not the one kveval created"),
                  "restore it from a backup, or choose another file with --db");
    }
  }
}

}  // namespace kveval
