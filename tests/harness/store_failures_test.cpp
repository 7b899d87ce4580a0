// Files that are not ours, folders that cannot be written, disks that are full, schemas that must change.
#include "harness/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>

#include "engine/random.h"
#include "harness/migrate.h"
#include "tests/harness/fixtures.h"
#include "tests/harness/store_records.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

using testing::AsNobody;
using testing::error_of;
using testing::example_arms;
using testing::example_run;
using testing::group_of;
using ::testing::HasSubstr;
using testing::kImpatient;
using testing::TempFolder;

// ---- wrong files

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }
std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_refused(const fs::path& path, const std::string& words) {
  for (const Store::Mode mode : {Store::Mode::read_only, Store::Mode::update, Store::Mode::read_write}) {
    const Error error = error_of([&] { Store(path, mode, kImpatient); });
    EXPECT_EQ(error.kind, ErrorKind::bad_file) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(words));
    EXPECT_THAT(error.what(), HasSubstr(path.filename().string()));
    EXPECT_FALSE(error.hint.empty());
  }
}

TEST(StoreRefuses, WhatIsNoDatabase) {
  const TempFolder folder;
  write(folder / "text", std::string(5000, 'x'));
  expect_refused(folder / "text", "not a SQLite database");
  EXPECT_EQ(read(folder / "text"), std::string(5000, 'x'));
  expect_refused(folder.path(), "is a folder");
}

TEST(StoreRefuses, ADatabaseOfAnotherProgramAndLeavesItAlone) {
  const TempFolder folder;
  SQLite::Database(folder / "theirs.db", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("CREATE TABLE t(a)");
  const std::string before = read(folder / "theirs.db");
  expect_refused(folder / "theirs.db", "another program");
  EXPECT_EQ(read(folder / "theirs.db"), before);
  SQLite::Database(folder / "id.db", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("PRAGMA application_id = 7; CREATE TABLE t(a)");
  expect_refused(folder / "id.db", "another program");
}

TEST(StoreRefuses, ANewerSchema) {
  const TempFolder folder;
  { Store store(folder / "k.db", Store::Mode::read_write); }
  SQLite::Database(folder / "k.db", SQLite::OPEN_READWRITE).exec("PRAGMA user_version = 999");
  expect_refused(folder / "k.db", "newer kveval (schema version 999");
}

TEST(StoreRefuses, AnAlteredSchema) {
  const TempFolder folder;
  { Store store(folder / "k.db", Store::Mode::read_write); }
  fs::copy_file(folder / "k.db", folder / "dropped.db");
  SQLite::Database(folder / "dropped.db", SQLite::OPEN_READWRITE).exec("DROP TABLE output");
  expect_refused(folder / "dropped.db", "'output' is missing");
  fs::copy_file(folder / "k.db", folder / "view.db");
  SQLite::Database(folder / "view.db", SQLite::OPEN_READWRITE)
      .exec("DROP TABLE output; CREATE VIEW output AS SELECT 1 AS arm_id");
  expect_refused(folder / "view.db", "'output' is not the one");
  // What a user adds beside them is no reason to refuse.
  SQLite::Database(folder / "k.db", SQLite::OPEN_READWRITE).exec("CREATE TABLE mine(a)");
  EXPECT_NO_THROW(Store(folder / "k.db", Store::Mode::read_only));
}

TEST(StoreRefuses, ADamagedFile) {
  const TempFolder folder;
  {
    Store store(folder / "k.db", Store::Mode::read_write);
    std::vector<ArmRecord> arms = example_arms();
    store.begin_run(example_run("r"), arms);
    for (int g = 0; g < 4; ++g) store.commit_group("r", group_of(arms, g));
  }
  // Random bytes over random places: whatever happens is an Error, never a crash or a hang.
  const std::string whole = read(folder / "k.db");
  Random random(5);
  for (int round = 0; round < 60; ++round) {
    std::string bytes = whole;
    const size_t from = random.below(bytes.size());
    const size_t count = std::min<size_t>(1 + random.below(2000), bytes.size() - from);
    for (size_t i = 0; i < count; ++i) bytes[from + i] = static_cast<char>(random.below(256));
    if (round % 4 == 0) bytes.resize(random.below(bytes.size()));
    write(folder / "bad.db", bytes);
    fs::remove(folder / "bad.db-wal");
    fs::remove(folder / "bad.db-shm");
    try {
      const Store store(folder / "bad.db", Store::Mode::read_only, kImpatient);
      for (const RunRecord& run : store.runs()) {
        for (const ArmRecord& arm : store.arms(run.id)) {
          for (const SampleView& view : store.samples(arm.id)) store.haystack(view.item.haystack_id);
          store.diagnostics(arm.id);
        }
        store.done_groups(run.id);
      }
    } catch (const Error& error) {
      EXPECT_TRUE(error.kind == ErrorKind::bad_file || error.kind == ErrorKind::run) << error.what();
    }
  }
}

TEST(StoreRefuses, AMissingFileOrFolder) {
  const TempFolder folder;
  for (const Store::Mode mode : {Store::Mode::read_only, Store::Mode::update}) {
    const Error missing = error_of([&] { Store(folder / "none.db", mode); });
    EXPECT_EQ(missing.kind, ErrorKind::bad_file);
    EXPECT_THAT(missing.what(), HasSubstr("there is no database"));
  }
  const Error no_folder = error_of([&] { Store(folder / "a/b.db", Store::Mode::read_write); });
  EXPECT_EQ(no_folder.kind, ErrorKind::bad_file);
  EXPECT_THAT(no_folder.what(), HasSubstr("there is no folder"));
  EXPECT_FALSE(fs::exists(folder / "none.db"));
}

TEST(StoreRefuses, AReadOnlyFolderOrFile) {
  const TempFolder folder;
  { Store store(folder / "k.db", Store::Mode::read_write); }
  fs::permissions(folder / "k.db", fs::perms::all);
  fs::permissions(folder.path(), fs::perms(0555));
  {
    const AsNobody nobody;
    for (const char* name : {"new.db", "k.db"}) {
      const Error error = error_of([&] { Store(folder / name, Store::Mode::read_write, kImpatient); });
      EXPECT_EQ(error.kind, ErrorKind::bad_file);
      EXPECT_THAT(error.what(), HasSubstr("read-only"));
    }
    // Reading needs no rights but to read.
    EXPECT_TRUE(Store(folder / "k.db", Store::Mode::read_only, kImpatient).runs().empty());
  }
  fs::permissions(folder.path(), fs::perms::all);
  fs::permissions(folder / "k.db", fs::perms(0444));
  {
    const AsNobody nobody;
    const Error error = error_of([&] { Store(folder / "k.db", Store::Mode::read_write, kImpatient); });
    EXPECT_EQ(error.kind, ErrorKind::bad_file);
    EXPECT_THAT(error.what(), HasSubstr("read-only"));
  }
}

// ---- full disk

void expect_run_survives(const TempFolder& folder, const fs::path& path, const std::function<void()>& fill,
                         const std::function<void()>& free) {
  Store store(path, Store::Mode::read_write, kImpatient);
  std::vector<ArmRecord> arms = example_arms();
  store.begin_run(example_run("r"), arms);
  store.commit_group("r", group_of(arms, 1));
  fill();
  Error error(ErrorKind::usage, "");
  for (int g = 2; g < 8 && error.kind == ErrorKind::usage; ++g) {
    try {
      store.commit_group("r", group_of(arms, g, 20000));
    } catch (const Error& caught) { error = caught; }
  }
  EXPECT_EQ(error.kind, ErrorKind::run) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(path.string()));
  EXPECT_THAT(error.hint, HasSubstr("kveval resume"));
  free();
  const size_t kept = store.done_groups("r").size();
  EXPECT_GE(kept, 1U);
  // What was committed is whole and the same store goes on.
  store.commit_group("r", group_of(arms, 50));
  EXPECT_EQ(Store(path, Store::Mode::read_only).done_groups("r").size(), kept + 1);
  SQLite::Database database(path.string());
  EXPECT_EQ(database.execAndGet("PRAGMA integrity_check").getString(), "ok");
  (void)folder;
}

TEST(Store, AFileSizeLimitLosesOneGroupAtMost) {
  const TempFolder folder;
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  expect_run_survives(
      folder, folder / "k.db",
      [&] {
        const rlimit small{fs::file_size(folder / "k.db-wal") + 100000, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
      },
      [&] { setrlimit(RLIMIT_FSIZE, &old); });
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
}

TEST(Store, AFullDiskLosesOneGroupAtMost) {
  const TempFolder folder;
  fs::create_directory(folder / "small");
  if (mount("tmpfs", (folder / "small").c_str(), "tmpfs", 0, "size=1m") != 0) {
    GTEST_SKIP() << "mounting a small disk needs more rights";
  }
  const auto unmount = [&] { umount2((folder / "small").c_str(), MNT_DETACH); };
  try {
    expect_run_survives(
        folder, folder / "small/k.db", [&] { write(folder / "small/ballast", std::string(500000, 'x')); },
        [&] { fs::remove(folder / "small/ballast"); });
  } catch (...) {
    unmount();
    throw;
  }
  unmount();
}

// ---- migration

TEST(Migrate, BacksUpThenAppliesTheMissingSteps) {
  const TempFolder folder;
  {
    Store store(folder / "k.db", Store::Mode::read_write);
    std::vector<ArmRecord> arms = example_arms();
    store.begin_run(example_run("r"), arms);
  }
  std::vector<std::string_view> steps(migrations().begin(), migrations().end());
  steps.insert(steps.end(),
               {"ALTER TABLE run ADD COLUMN branch TEXT", "CREATE TABLE baseline(name TEXT) STRICT"});
  SQLite::Database database(folder / "k.db", SQLite::OPEN_READWRITE);
  migrate(database, folder / "k.db", steps);
  EXPECT_EQ(database.execAndGet("PRAGMA user_version").getInt(), kSchemaVersion + 2);
  EXPECT_EQ(database.execAndGet("SELECT count(*) FROM run WHERE branch IS NULL").getInt(), 1);
  EXPECT_TRUE(database.tableExists("baseline"));
  migrate(database, folder / "k.db", steps);  // nothing left to do, no second backup

  int backups = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    backups += entry.path().string().find("backup") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(backups, 1);
  const Store backup(folder / ("k.db.v" + std::to_string(kSchemaVersion) + ".backup"),
                     Store::Mode::read_only);
  EXPECT_EQ(backup.runs().size(), 1U);
}

TEST(Migrate, AStepThatFailsChangesNothing) {
  const TempFolder folder;
  { Store store(folder / "k.db", Store::Mode::read_write); }
  std::vector<std::string_view> steps(migrations().begin(), migrations().end());
  steps.emplace_back("CREATE TABLE fine(a); CREATE TABLE run(a)");
  {
    SQLite::Database database(folder / "k.db", SQLite::OPEN_READWRITE);
    EXPECT_THROW(migrate(database, folder / "k.db", steps), SQLite::Exception);
    EXPECT_EQ(database.execAndGet("PRAGMA user_version").getInt(), kSchemaVersion);
    EXPECT_FALSE(database.tableExists("fine"));
  }
  EXPECT_NO_THROW(Store(folder / "k.db", Store::Mode::read_write));
}

// A file as version 1 wrote it: schema_1.sql is that version's, and every row is one it could have held.
TEST(Migrate, AFileOfVersion1KeepsEveryRowAndTakesSpeeds) {
  const TempFolder folder;
  {
    Store store(folder / "new.db", Store::Mode::read_write);
    std::vector<ArmRecord> arms = example_arms();
    store.begin_run(example_run("r"), arms);
    for (int g = 0; g < 3; ++g) store.commit_group("r", group_of(arms, g));
    SQLite::Database old(folder / "k.db", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE);
    old.exec(read(fs::path(KVEVAL_SOURCE_DIR) / "tests/harness/schema_1.sql"));
    old.exec("PRAGMA application_id = 0x4B564556; PRAGMA user_version = 1");
    old.exec("ATTACH '" + (folder / "new.db").string() + "' AS new");
    for (const char* table :
         {"run", "arm", "haystack", "item", "run_group", "sample", "output", "diagnostic"})
      old.exec(std::string("INSERT INTO ") + table + " SELECT * FROM new." + table);
  }
  const std::string rows = testing::dump(folder / "k.db");
  ASSERT_EQ(rows, testing::dump(folder / "new.db"));
  const Error unread = error_of([&] { Store(folder / "k.db", Store::Mode::read_only); });
  EXPECT_THAT(unread.what(), HasSubstr("older kveval (schema version 1"));
  EXPECT_THAT(unread.hint, HasSubstr("bring it up to date"));

  SpeedRecord speed;
  speed.key.model_hash = "m";
  speed.profile = "fp16";
  speed.length = 8192;
  speed.prefix_flops = speed.prefill_seconds = speed.decode_seconds = 1;
  Store(folder / "k.db", Store::Mode::update).save_speeds({speed});
  const Store store(folder / "k.db", Store::Mode::read_only);
  EXPECT_EQ(testing::dump(folder / "k.db"), rows);
  EXPECT_EQ(store.speeds(speed.key).size(), 1u);
  EXPECT_EQ(store.done_groups("r").size(), 3u);
  SQLite::Database backup(folder / "k.db.v1.backup", SQLite::OPEN_READONLY);
  EXPECT_EQ(backup.execAndGet("PRAGMA user_version").getInt(), 1);
  EXPECT_FALSE(backup.tableExists("speed"));
  EXPECT_EQ(testing::dump(folder / "k.db.v1.backup"), rows);
}

// SQLite's names for databases that vanish with the program.
TEST(StoreFailures, ANameThatKeepsNothingIsRefused) {
  for (const char* name : {"", ":memory:"}) {
    try {
      Store store(name, Store::Mode::read_write);
      FAIL() << "opened '" << name << "'";
    } catch (const Error& error) { EXPECT_EQ(error.kind, ErrorKind::usage) << error.what(); }
  }
}

}  // namespace
}  // namespace kveval
