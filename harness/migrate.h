// The database's schema: creating it, and bringing an older file up to date.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>

namespace SQLite {
class Database;
}

namespace kveval {

inline constexpr int kApplicationId = 0x4B564556;  // "KVEV", so that file(1) can tell
inline constexpr int kSchemaVersion = 2;           // PRAGMA user_version

// steps[i] is the SQL that brings version i + 1 to version i + 2; the last one ends at kSchemaVersion.
std::span<const std::string_view> migrations();

// Creates every table in an empty database, in one transaction. Harmless when another process was faster.
void create_schema(SQLite::Database& database);

// Copies the database to "<path>.v<version>.backup" and then applies the missing steps in one transaction.
// Does nothing when no step is missing.
void migrate(SQLite::Database& database, const std::filesystem::path& path,
             std::span<const std::string_view> steps);

// Throws Error{bad_file} naming the first table, index or view of schema.sql that is missing or altered.
// Others may exist beside them.
void check_schema(SQLite::Database& database, const std::filesystem::path& path);

}  // namespace kveval
