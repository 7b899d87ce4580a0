#include "harness/store.h"

#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <zstd.h>

#include <bit>
#include <cstring>
#include <thread>

#include "harness/migrate.h"
#include "harness/store_state.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxUnpackedBytes = size_t{256} << 20;
constexpr int kMaxBlobBytes = 256 << 20;

// Write-ahead logging needs memory shared by every process that has the file open, which these cannot give
// across machines. The magic numbers are those of statfs(2).
bool is_network_folder(const fs::path& path) {
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  struct statfs facts {};
  if (statfs(folder.c_str(), &facts) != 0) return false;
  switch (static_cast<uint32_t>(facts.f_type)) {
    case 0x6969:      // NFS
    case 0x517B:      // SMB
    case 0xFF534D42:  // CIFS
    case 0xFE534D42:  // SMB2
    case 0x01021997:  // 9P
    case 0x0BD00BD0:  // Lustre
    case 0x00C36400:  // Ceph
      return true;
    default: return false;
  }
}

// A database may come from someone else: nothing in its schema may run code or reach other files.
void harden(sqlite3* handle, bool read_only) {
  sqlite3_db_config(handle, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_TRIGGER, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, nullptr);
  sqlite3_limit(handle, SQLITE_LIMIT_LENGTH, kMaxBlobBytes);
  if (!read_only) return;
  // A writer needs the first for json_valid in its CHECKs (all compared with ours by check_schema) and the
  // last for the backup before a migration.
  sqlite3_db_config(handle, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
  sqlite3_db_config(handle, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
  sqlite3_limit(handle, SQLITE_LIMIT_ATTACHED, 0);
}

// "file:" form of a path, for options a plain name cannot carry.
std::string uri_of(const fs::path& path, std::string_view options) {
  std::string uri = "file:";
  for (const char c : fs::absolute(path).string()) {
    if (c == '?' || c == '#' || c == '%') {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      uri += c;
    }
  }
  return fmt::format("{}?{}", uri, options);
}

// A database in write-ahead mode cannot be opened plainly where its side files cannot be created. When no
// writer left any behind, the file itself is whole and nobody can change it.
SQLite::Database open_for_reading(const fs::path& path, int patience_ms) {
  SQLite::Database database(path.string(), SQLite::OPEN_READONLY, patience_ms);
  try {
    database.execAndGet("SELECT count(*) FROM sqlite_schema");
    return database;
  } catch (const SQLite::Exception& error) {
    const int code = error.getErrorCode();
    std::error_code ignored;
    const fs::path log = path.string() + "-wal";
    const bool log_empty = !fs::exists(log, ignored) || fs::file_size(log, ignored) == 0;
    if ((code != SQLITE_CANTOPEN && code != SQLITE_READONLY) || !log_empty) throw;
  }
  return SQLite::Database(uri_of(path, "immutable=1"), SQLite::OPEN_READONLY | SQLite::OPEN_URI, patience_ms);
}

SQLite::Database open_file(const fs::path& path, Store::Mode mode, int patience_ms) {
  std::error_code ignored;
  // SQLite takes both for databases that vanish when the program ends.
  if (path.empty() || path == ":memory:") {
    throw Error(ErrorKind::usage, fmt::format("'{}' is no file to keep results in", path.string()),
                "name a file with --db");
  }
  if (fs::is_directory(path, ignored)) {
    throw Error(ErrorKind::bad_file, fmt::format("'{}' is a folder, not a database", path.string()),
                "name a file with --db");
  }
  if (mode != Store::Mode::read_write && !fs::exists(path, ignored)) {
    throw Error(ErrorKind::bad_file, fmt::format("there is no database '{}'", path.string()),
                "start a run with 'kveval run niah', or name another file with --db");
  }
  if (mode == Store::Mode::read_only) return open_for_reading(path, patience_ms);
  const fs::path folder = path.parent_path();
  if (!folder.empty() && !fs::is_directory(folder, ignored)) {
    throw Error(ErrorKind::bad_file,
                fmt::format("cannot create '{}': there is no folder '{}'", path.string(), folder.string()),
                "create the folder, or name another file with --db");
  }
  const int create = mode == Store::Mode::read_write ? SQLite::OPEN_CREATE : 0;
  return SQLite::Database(path.string(), SQLite::OPEN_READWRITE | create, patience_ms);
}

// Identifies the file, creating or migrating it where the mode allows.
void identify(SQLite::Database& database, const fs::path& path, Store::Mode mode) {
  const bool empty = database.execAndGet("SELECT count(*) FROM sqlite_schema").getInt() == 0;
  const int application = database.execAndGet("PRAGMA application_id").getInt();
  if (empty && application == 0) {
    if (mode != Store::Mode::read_write) {
      throw Error(ErrorKind::bad_file, fmt::format("the database '{}' is empty", path.string()),
                  "start a run with 'kveval run niah', or name another file with --db");
    }
    create_schema(database);
  } else if (application != kApplicationId) {
    throw Error(ErrorKind::bad_file, fmt::format("'{}' is a database of another program", path.string()),
                "choose another file with --db");
  }
  const int version = database.execAndGet("PRAGMA user_version").getInt();
  if (version > kSchemaVersion) {
    throw Error(ErrorKind::bad_file,
                fmt::format("'{}' was written by a newer kveval (schema version {}, this one knows {})",
                            path.string(), version, kSchemaVersion),
                "update kveval, or choose another file with --db");
  }
  if (version < kSchemaVersion && mode == Store::Mode::read_only) {
    throw Error(ErrorKind::bad_file,
                fmt::format("'{}' was written by an older kveval (schema version {}, this one reads {})",
                            path.string(), version, kSchemaVersion),
                "run 'kveval run', 'resume' or 'bench' on it once: they back it up and bring it up to date");
  }
  migrate(database, path, migrations());
  check_schema(database, path);
}

// Returns a sentence for the user when the file stays without write-ahead logging.
std::string choose_journal(SQLite::Database& database, const fs::path& path) {
  const char* wanted = is_network_folder(path) ? "delete" : "wal";
  const std::string got = database.execAndGet(fmt::format("PRAGMA journal_mode = {}", wanted)).getString();
  if (got == "wal") return {};
  return fmt::format(
      "'{}' lies where SQLite cannot use write-ahead logging; other kveval commands may have to wait while a "
      "run "
      "commits",
      path.string());
}

SQLite::Database open_store_file(const fs::path& path, Store::Mode mode, int patience_ms,
                                 std::string& notice) {
  SQLite::Database database = open_file(path, mode, patience_ms);
  harden(database.getHandle(), mode == Store::Mode::read_only);
  database.exec("PRAGMA foreign_keys = ON; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0");
  identify(database, path, mode);
  if (mode != Store::Mode::read_only) {
    if (sqlite3_db_readonly(database.getHandle(), "main") == 1) {
      throw Error(ErrorKind::bad_file, fmt::format("'{}' is read-only", path.string()),
                  "make it writable, or name another file with --db");
    }
    notice = choose_journal(database, path);
    database.exec("PRAGMA synchronous = FULL");
    // Taking the write lock once shows a folder that cannot hold the side files before hours of work, not
    // after.
    SQLite::Transaction(database, SQLite::TransactionBehavior::IMMEDIATE).commit();
  }
  return database;
}

}  // namespace

void throw_store_error(const SQLite::Exception& error, const fs::path& path, bool opening) {
  const std::string file = path.string();
  const std::string go_on =
      "free what is missing; a run then goes on with 'kveval resume', its whole groups are kept";
  switch (error.getErrorCode()) {
    case SQLITE_NOTADB:
      throw Error(ErrorKind::bad_file, fmt::format("'{}' is not a SQLite database", file),
                  "choose another file with --db");
    case SQLITE_CORRUPT:
      throw Error(ErrorKind::bad_file, fmt::format("'{}' is damaged: {}", file, error.what()),
                  "restore it from a backup, or choose another file with --db");
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      throw Error(opening ? ErrorKind::bad_file : ErrorKind::run,
                  fmt::format("'{}' is locked by another process", file),
                  opening ? "wait until it is done, or name another file with --db"
                          : "wait until it is done; a run then goes on with 'kveval resume'");
    case SQLITE_READONLY:
    case SQLITE_PERM:
    case SQLITE_CANTOPEN:
      throw Error(ErrorKind::bad_file,
                  fmt::format("cannot {} '{}': the file or its folder is read-only or out of reach",
                              opening ? "open" : "write", file),
                  "make both readable and writable, or name another file with --db");
    case SQLITE_FULL:
      throw Error(ErrorKind::run, fmt::format("the disk that holds '{}' is full", file), go_on);
    case SQLITE_IOERR:
      throw Error(ErrorKind::run, fmt::format("cannot write '{}': {}", file, error.what()), go_on);
    default: throw Error(ErrorKind::run, fmt::format("the database '{}' failed: {}", file, error.what()));
  }
}

std::string pack_tokens(const std::vector<int32_t>& tokens) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(tokens.size() * sizeof(int32_t), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), tokens.data(), bytes.size());
  return bytes;
}

std::vector<int32_t> unpack_tokens(std::string_view bytes, const fs::path& path) {
  if (bytes.size() % sizeof(int32_t) != 0) {
    throw Error(ErrorKind::bad_file,
                fmt::format("'{}' is damaged: token ids of {} bytes", path.string(), bytes.size()),
                "restore it from a backup");
  }
  std::vector<int32_t> tokens(bytes.size() / sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(tokens.data(), bytes.data(), bytes.size());
  return tokens;
}

std::string compress(std::string_view bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  const size_t size =
      ZSTD_compress(packed.data(), packed.size(), bytes.data(), bytes.size(), ZSTD_CLEVEL_DEFAULT);
  if (ZSTD_isError(size) != 0) {
    throw Error(ErrorKind::run,
                fmt::format("cannot compress {} bytes: {}", bytes.size(), ZSTD_getErrorName(size)));
  }
  packed.resize(size);
  return packed;
}

std::string decompress(std::string_view bytes, const fs::path& path) {
  const auto damaged = [&](std::string_view why) {
    return Error(ErrorKind::bad_file, fmt::format("'{}' is damaged: a haystack {}", path.string(), why),
                 "restore it from a backup");
  };
  const unsigned long long claimed = ZSTD_getFrameContentSize(bytes.data(), bytes.size());
  if (claimed == ZSTD_CONTENTSIZE_ERROR || claimed == ZSTD_CONTENTSIZE_UNKNOWN) {
    throw damaged("is not compressed as kveval does");
  }
  if (claimed > kMaxUnpackedBytes) throw damaged("claims to be larger than 256 MiB");
  std::string text(claimed, '\0');
  const size_t size = ZSTD_decompress(text.data(), text.size(), bytes.data(), bytes.size());
  if (ZSTD_isError(size) != 0 || size != text.size()) throw damaged("cannot be decompressed");
  return text;
}

Store::Store(const fs::path& path, Mode mode, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  for (;;) {
    try {
      std::string notice;
      SQLite::Database database = open_store_file(path, mode, static_cast<int>(patience.count()), notice);
      state_ = std::make_unique<State>(State{path, std::move(database), notice, {}, 0});
      return;
    } catch (const SQLite::Exception& error) {
      // Some locks (switching to write-ahead logging, recovery after a crash) do not wait for the busy
      // timeout.
      const bool locked = error.getErrorCode() == SQLITE_BUSY || error.getErrorCode() == SQLITE_LOCKED;
      if (!locked || std::chrono::steady_clock::now() >= deadline) throw_store_error(error, path, true);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

Store::~Store() = default;
Store::Store(Store&&) noexcept = default;

fs::path Store::path() const { return state_->path; }
std::string Store::notice() const { return state_->notice; }

const char* name_of(RunStatus status) {
  switch (status) {
    case RunStatus::running: return "running";
    case RunStatus::complete: return "complete";
    case RunStatus::interrupted: return "interrupted";
    case RunStatus::failed: return "failed";
  }
  return "failed";
}

std::string group_key(std::string_view task, int length, int haystack) {
  return fmt::format("{}/{}/{}", task, length, haystack);
}

}  // namespace kveval
