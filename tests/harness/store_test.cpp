#include "harness/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <limits>
#include <thread>

#include "engine/random.h"
#include "harness/migrate.h"
#include "tests/harness/fixtures.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

using testing::AsNobody;
using ::testing::ElementsAre;
using testing::error_of;
using testing::example_arms;
using testing::example_run;
using ::testing::HasSubstr;
using testing::TempFolder;

constexpr auto kImpatient = std::chrono::milliseconds(30);

HaystackRecord haystack_of(int number, size_t tokens) {
  HaystackRecord haystack;
  haystack.task = "niah";
  haystack.task_version = 3;
  haystack.length = 8192;
  haystack.index = number;
  haystack.prefix_sha = "prefix" + std::to_string(number);
  Random random(static_cast<uint64_t>(number));
  for (size_t i = 0; i < tokens; ++i) {
    haystack.prefix_tokens.push_back(static_cast<int32_t>(random.below(1U << 31U)));
    haystack.prefix_text += static_cast<char>(random.below(256));
  }
  return haystack;
}

ItemRecord item_of(const HaystackRecord& haystack, int number) {
  ItemRecord item;
  item.item_key = "a" + std::to_string(haystack.index) + "b" + std::to_string(number);
  item.prompt_sha = "sha" + item.item_key;
  item.index = number;
  if (number != 1) item.stratum = number;
  if (number != 1) item.depth = 0.25 * number;
  item.question = "What is it?\n";
  item.expected = "42";
  item.question_tokens = {1, -1, std::numeric_limits<int32_t>::max()};
  item.target_tokens = {7};
  return item;
}

SampleRecord ok_sample(bool correct) {
  SampleRecord sample;
  sample.correct = sample.strict = correct;
  sample.first = true;
  sample.contains = true;
  sample.output = std::string("42\0\x1b[31m\xff", 9);
  sample.output_tokens = {7, 8};
  sample.stop = "length";
  sample.gold_nll = 1.0 / 3;
  sample.kl = 0.125;
  sample.top1_agreement = 0.5;
  sample.first_divergence = 1;
  sample.milliseconds = 2.5;
  return sample;
}

SampleRecord error_sample() {
  SampleRecord sample;
  sample.state = SampleState::error;
  sample.error = "out of context";
  sample.milliseconds = 1;
  return sample;
}

// Three questions: right, wrong without details, an error.
GroupResult group_of(const std::vector<ArmRecord>& arms, int number, size_t tokens = 100) {
  GroupResult group;
  group.haystack = haystack_of(number, tokens);
  for (int i = 0; i < 3; ++i) group.items.push_back(item_of(group.haystack, i));
  SampleRecord bare = ok_sample(false);
  bare.kl.reset();
  bare.top1_agreement.reset();
  bare.first_divergence.reset();
  bare.gold_nll.reset();
  for (const ArmRecord& arm : arms) {
    group.arms.push_back({arm.id, {ok_sample(true), bare, error_sample()}, {}});
    for (const bool keys : {true, false}) {
      group.arms.back().diagnostics.push_back(
          {arm.id, 0, 1, 0, keys, 10, 2, 3, keys ? 4.5 : 1.0 + number, 0.5, 0.25});
    }
  }
  return group;
}

void expect_equal(const SampleRecord& a, const SampleRecord& b) {
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(a.correct, b.correct);
  EXPECT_EQ(a.strict, b.strict);
  EXPECT_EQ(a.first, b.first);
  EXPECT_EQ(a.contains, b.contains);
  EXPECT_EQ(a.output, b.output);
  EXPECT_EQ(a.output_tokens, b.output_tokens);
  EXPECT_EQ(a.stop, b.stop);
  EXPECT_EQ(a.gold_nll, b.gold_nll);
  EXPECT_EQ(a.kl, b.kl);
  EXPECT_EQ(a.top1_agreement, b.top1_agreement);
  EXPECT_EQ(a.first_divergence, b.first_divergence);
  EXPECT_EQ(a.milliseconds, b.milliseconds);
  EXPECT_EQ(a.error, b.error);
}

TEST(Store, GivesBackARun) {
  const TempFolder folder;
  const RunRecord written = example_run("20260101-000000-aaaa");
  std::vector<ArmRecord> arms = example_arms();
  {
    Store store(folder / "k.db", Store::Mode::read_write);
    store.begin_run(written, arms);
  }
  const Store store(folder / "k.db", Store::Mode::read_only);
  const RunRecord read = store.find_run(written.id);
  EXPECT_EQ(read.id, written.id);
  EXPECT_EQ(read.suite, written.suite);
  EXPECT_EQ(read.suite_json, written.suite_json);
  EXPECT_EQ(read.suite_hash, written.suite_hash);
  EXPECT_EQ(read.config_json, written.config_json);
  EXPECT_EQ(read.config_hash, written.config_hash);
  EXPECT_EQ(read.status, RunStatus::running);
  EXPECT_EQ(read.started_ms, written.started_ms);
  EXPECT_EQ(read.finished_ms, std::nullopt);
  EXPECT_EQ(read.heartbeat_ms, written.heartbeat_ms);
  EXPECT_EQ(read.pid, written.pid);
  EXPECT_EQ(read.seed, written.seed);
  EXPECT_EQ(read.model, written.model);
  EXPECT_EQ(read.model_hash, written.model_hash);
  EXPECT_EQ(read.tokenizer_hash, written.tokenizer_hash);
  EXPECT_EQ(read.template_hash, written.template_hash);
  EXPECT_EQ(read.decoding_json, written.decoding_json);
  EXPECT_EQ(read.compute, written.compute);
  EXPECT_EQ(read.cache_mode, written.cache_mode);
  EXPECT_EQ(read.tool_version, written.tool_version);
  EXPECT_EQ(read.git_sha, written.git_sha);
  EXPECT_EQ(read.git_dirty, written.git_dirty);
  EXPECT_EQ(read.host, written.host);
  EXPECT_EQ(read.cpu, written.cpu);
  EXPECT_EQ(read.simd, written.simd);
  EXPECT_EQ(read.argv_json, written.argv_json);
  EXPECT_EQ(read.threads, written.threads);
  EXPECT_EQ(read.groups_planned, written.groups_planned);

  const std::vector<ArmRecord> read_arms = store.arms(written.id);
  ASSERT_EQ(read_arms.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read_arms[i].id, arms[i].id);
    EXPECT_EQ(read_arms[i].run_id, written.id);
    EXPECT_EQ(read_arms[i].position, arms[i].position);
    EXPECT_EQ(read_arms[i].name, arms[i].name);
    EXPECT_EQ(read_arms[i].baseline, arms[i].baseline);
    EXPECT_EQ(read_arms[i].profile_json, arms[i].profile_json);
    EXPECT_EQ(read_arms[i].profile_hash, arms[i].profile_hash);
    EXPECT_EQ(read_arms[i].k_format, arms[i].k_format);
    EXPECT_EQ(read_arms[i].v_format, arms[i].v_format);
    EXPECT_EQ(read_arms[i].cache_bytes_per_token, arms[i].cache_bytes_per_token);
  }
}

TEST(Store, GivesBackAGroup) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  std::vector<ArmRecord> arms = example_arms();
  store.begin_run(example_run("r"), arms);
  // Larger than one compression window, and random so that nothing is lucky.
  store.commit_group("r", group_of(arms, 2, 300000));
  store.commit_group("r", group_of(arms, 10));
  EXPECT_THAT(store.done_groups("r"), ElementsAre("niah/8192/2", "niah/8192/10"));

  for (const ArmRecord& arm : arms) {
    const std::vector<SampleView> views = store.samples(arm.id);
    ASSERT_EQ(views.size(), 6U);
    for (size_t i = 0; i < 6; ++i) {
      const int number = i < 3 ? 2 : 10;
      const GroupResult expected = group_of(arms, number, 1);
      const ItemRecord& item = expected.items[i % 3];
      EXPECT_EQ(views[i].task, "niah");
      EXPECT_EQ(views[i].task_version, 3);
      EXPECT_EQ(views[i].length, 8192);
      EXPECT_EQ(views[i].haystack, number);
      EXPECT_EQ(views[i].item.item_key, item.item_key);
      EXPECT_EQ(views[i].item.prompt_sha, item.prompt_sha);
      EXPECT_EQ(views[i].item.index, item.index);
      EXPECT_EQ(views[i].item.stratum, item.stratum);
      EXPECT_EQ(views[i].item.depth, item.depth);
      EXPECT_EQ(views[i].item.question, item.question);
      EXPECT_EQ(views[i].item.expected, item.expected);
      EXPECT_EQ(views[i].item.question_tokens, item.question_tokens);
      EXPECT_EQ(views[i].item.target_tokens, item.target_tokens);
      expect_equal(views[i].sample, expected.arms[0].samples[i % 3]);
    }
    const HaystackRecord haystack = store.haystack(views[0].item.haystack_id);
    const HaystackRecord expected = haystack_of(2, 300000);
    EXPECT_EQ(haystack.prefix_tokens, expected.prefix_tokens);
    EXPECT_EQ(haystack.prefix_text, expected.prefix_text);
    EXPECT_EQ(haystack.prefix_sha, expected.prefix_sha);

    const std::vector<DiagnosticRecord> sums = store.diagnostics(arm.id);
    ASSERT_EQ(sums.size(), 2U);
    EXPECT_TRUE(sums[0].keys);
    EXPECT_FALSE(sums[1].keys);
    EXPECT_EQ(sums[1].elements, 20);
    EXPECT_EQ(sums[1].clipped, 4);
    EXPECT_EQ(sums[1].flushed, 6);
    EXPECT_EQ(sums[1].absolute_max, 11.0);
    EXPECT_EQ(sums[1].error_energy, 1.0);
    EXPECT_EQ(sums[1].energy, 0.5);
  }
}

TEST(Store, SharesQuestionsBetweenRunsAndKeepsDriftedOnesApart) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  std::vector<ArmRecord> first = example_arms(), second = example_arms(), drifted = example_arms();
  store.begin_run(example_run("first"), first);
  store.commit_group("first", group_of(first, 1));
  store.begin_run(example_run("second"), second);
  store.commit_group("second", group_of(second, 1));
  store.begin_run(example_run("drifted"), drifted);
  GroupResult other = group_of(drifted, 1);
  other.haystack.prefix_sha = "another tokenizer";
  for (ItemRecord& item : other.items) item.prompt_sha += "'";
  store.commit_group("drifted", other);

  const auto a = store.samples(first[0].id), b = store.samples(second[1].id),
             c = store.samples(drifted[0].id);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(a[i].item.id, b[i].item.id);
    EXPECT_EQ(a[i].item.haystack_id, b[i].item.haystack_id);
    EXPECT_EQ(a[i].item.item_key, c[i].item.item_key);
    EXPECT_NE(a[i].item.id, c[i].item.id);
    EXPECT_NE(a[i].item.haystack_id, c[i].item.haystack_id);
  }
  EXPECT_THAT(store.runs_with_item("a1b0"), ElementsAre("drifted", "second", "first"));
  EXPECT_THAT(store.runs_with_item("a1"), ElementsAre("drifted", "second", "first"));
  EXPECT_TRUE(store.runs_with_item("a2").empty());
}

TEST(Store, ViewsSeparatePairsFromThoseLostToErrors) {
  const TempFolder folder;
  std::vector<ArmRecord> arms = example_arms();
  {
    Store store(folder / "k.db", Store::Mode::read_write);
    store.begin_run(example_run("r"), arms);
    GroupResult group = group_of(arms, 1);
    group.arms[1].samples[0].correct = false;
    store.commit_group("r", group);
  }
  SQLite::Database database((folder / "k.db").string());
  const std::string between = " WHERE base_arm = " + std::to_string(arms[0].id) +
                              " AND candidate_arm = " + std::to_string(arms[1].id);
  EXPECT_EQ(database.execAndGet("SELECT count(*) FROM pair" + between).getInt(), 2);
  EXPECT_EQ(database.execAndGet("SELECT sum(loss) FROM pair" + between).getInt(), 1);
  EXPECT_EQ(database.execAndGet("SELECT sum(gain) FROM pair" + between).getInt(), 0);
  EXPECT_EQ(database.execAndGet("SELECT count(*) FROM pair_lost_to_error" + between).getInt(), 1);
}

TEST(Store, RefusesAnErrorThatCountsAsAnAnswer) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  std::vector<ArmRecord> arms = example_arms();
  store.begin_run(example_run("r"), arms);
  GroupResult group = group_of(arms, 1);
  group.arms[0].samples[0].correct.reset();
  EXPECT_THROW(store.commit_group("r", group), Error);
  group = group_of(arms, 1);
  group.arms[1].samples.pop_back();
  EXPECT_THROW(store.commit_group("r", group), Error);
  // Neither left anything behind.
  EXPECT_TRUE(store.done_groups("r").empty());
  EXPECT_TRUE(store.samples(arms[0].id).empty());
  EXPECT_NO_THROW(store.commit_group("r", group_of(arms, 1)));
}

TEST(Store, FindsRuns) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  EXPECT_EQ(error_of([&] { store.find_run("latest"); }).kind, ErrorKind::usage);
  for (const char* id : {"20260101-000000-aaaa", "20260102-000000-abba", "20260102-111111-aaaa"}) {
    std::vector<ArmRecord> arms = example_arms();
    // The middle one is the newest.
    store.begin_run(example_run(id, std::string(id) == "20260102-000000-abba" ? 9000 : 1000), arms);
  }
  EXPECT_EQ(store.runs().front().id, "20260102-000000-abba");
  EXPECT_EQ(store.find_run("latest").id, "20260102-000000-abba");
  EXPECT_EQ(store.find_run("20260101").id, "20260101-000000-aaaa");
  EXPECT_EQ(store.find_run("bba").id, "20260102-000000-abba");
  EXPECT_EQ(store.find_run("20260102-111111-aaaa").id, "20260102-111111-aaaa");
  const Error ambiguous = error_of([&] { store.find_run("aaaa"); });
  EXPECT_EQ(ambiguous.kind, ErrorKind::usage);
  EXPECT_THAT(ambiguous.what(), HasSubstr("20260101-000000-aaaa"));
  EXPECT_THAT(ambiguous.what(), HasSubstr("20260102-111111-aaaa"));
  EXPECT_THAT(error_of([&] { store.find_run("zzz"); }).what(), HasSubstr("zzz"));
  EXPECT_EQ(error_of([&] { store.find_run(""); }).kind, ErrorKind::usage);
}

TEST(Store, StatusFollowsTheRun) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  std::vector<ArmRecord> arms = example_arms();
  store.begin_run(example_run("r"), arms);
  store.heartbeat("r", 5000);
  EXPECT_EQ(store.find_run("r").heartbeat_ms, 5000);
  store.set_status("r", RunStatus::interrupted, 6000);
  EXPECT_EQ(store.find_run("r").status, RunStatus::interrupted);
  EXPECT_EQ(store.find_run("r").finished_ms, 6000);
  store.claim("r", "elsewhere", 77, 7000);
  EXPECT_EQ(store.find_run("r").status, RunStatus::running);
  EXPECT_EQ(store.find_run("r").finished_ms, std::nullopt);
  EXPECT_EQ(store.find_run("r").pid, 77);
  store.set_status("r", RunStatus::complete, 8000);
  EXPECT_EQ(store.find_run("r").status, RunStatus::complete);
  EXPECT_THROW(store.heartbeat("none", 1), Error);
}

TEST(Store, ARunThatWasTakenOverIsLeftAlone) {
  const TempFolder folder;
  Store first(folder / "k.db", Store::Mode::read_write);
  std::vector<ArmRecord> arms = example_arms();
  first.begin_run(example_run("r"), arms);
  Store second(folder / "k.db", Store::Mode::read_write);
  EXPECT_THROW(second.commit_group("r", group_of(arms, 1)), Error);
  second.claim("r", "elsewhere", 99, 7000);
  second.commit_group("r", group_of(arms, 1));
  const Error taken = error_of([&] { first.commit_group("r", group_of(arms, 2)); });
  EXPECT_EQ(taken.kind, ErrorKind::run);
  EXPECT_THAT(taken.what(), HasSubstr("taken over"));
  EXPECT_THROW(first.set_status("r", RunStatus::failed, 1), Error);
  EXPECT_THROW(first.heartbeat("r", 1), Error);
  EXPECT_EQ(second.find_run("r").status, RunStatus::running);
}

// ------------------------------------------------------------------------------------------------ several
// writers

TEST(Store, FourProcessesWriteAtOnce) {
  const TempFolder folder;
  constexpr int kWriters = 4, kGroups = 15;
  std::vector<pid_t> children;
  for (int w = 0; w < kWriters; ++w) {
    const pid_t child = fork();
    if (child == 0) {
      // _exit: the child must not run the parent's test machinery.
      try {
        Store store(folder / "k.db", Store::Mode::read_write);
        std::vector<ArmRecord> arms = example_arms();
        const std::string id = "run" + std::to_string(w);
        store.begin_run(example_run(id), arms);
        for (int g = 0; g < kGroups; ++g) store.commit_group(id, group_of(arms, g));
      } catch (...) { _exit(1); }
      _exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  const Store store(folder / "k.db", Store::Mode::read_only);
  ASSERT_EQ(store.runs().size(), size_t{kWriters});
  for (const RunRecord& run : store.runs()) {
    EXPECT_EQ(store.done_groups(run.id).size(), size_t{kGroups});
    for (const ArmRecord& arm : store.arms(run.id))
      EXPECT_EQ(store.samples(arm.id).size(), size_t{3 * kGroups});
  }
  SQLite::Database database((folder / "k.db").string());
  EXPECT_EQ(database.execAndGet("SELECT count(*) FROM haystack").getInt(), kGroups);
  EXPECT_EQ(database.execAndGet("PRAGMA integrity_check").getString(), "ok");
  EXPECT_EQ(database.execAndGet("SELECT count(*) FROM pragma_foreign_key_check").getInt(), 0);
}

TEST(Store, ALockThatLastsIsOneSentence) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write, kImpatient);
  std::vector<ArmRecord> arms = example_arms();
  store.begin_run(example_run("r"), arms);

  SQLite::Database other((folder / "k.db").string(), SQLite::OPEN_READWRITE);
  other.exec("BEGIN IMMEDIATE");
  const Error writing = error_of([&] { store.commit_group("r", group_of(arms, 1)); });
  EXPECT_EQ(writing.kind, ErrorKind::run);
  EXPECT_THAT(writing.what(), HasSubstr("locked"));
  EXPECT_THAT(writing.hint, HasSubstr("kveval resume"));
  const Error opening = error_of([&] { Store(folder / "k.db", Store::Mode::read_write, kImpatient); });
  EXPECT_EQ(opening.kind, ErrorKind::bad_file);
  EXPECT_THAT(opening.what(), HasSubstr("locked"));
  // Readers are not held up.
  EXPECT_EQ(Store(folder / "k.db", Store::Mode::read_only, kImpatient).runs().size(), 1U);
  other.exec("COMMIT");
  EXPECT_NO_THROW(store.commit_group("r", group_of(arms, 1)));
}

TEST(Store, WaitsForALockThatEnds) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write, std::chrono::seconds(20));
  std::vector<ArmRecord> arms = example_arms();
  store.begin_run(example_run("r"), arms);
  SQLite::Database other((folder / "k.db").string(), SQLite::OPEN_READWRITE);
  other.exec("BEGIN IMMEDIATE");
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    other.exec("COMMIT");
  });
  EXPECT_NO_THROW(store.commit_group("r", group_of(arms, 1)));
  release.join();
}

// ------------------------------------------------------------------------------------------------- wrong
// files

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

TEST(Store, AReaderCannotWrite) {
  const TempFolder folder;
  std::vector<ArmRecord> arms = example_arms();
  { Store store(folder / "k.db", Store::Mode::read_write); }
  Store reader(folder / "k.db", Store::Mode::read_only);
  EXPECT_EQ(error_of([&] { reader.begin_run(example_run("r"), arms); }).kind, ErrorKind::bad_file);
}

// ---------------------------------------------------------------------------------------------------- full
// disk

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

// ---------------------------------------------------------------------------------------------------------
// journal

TEST(Store, UsesWriteAheadLogging) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  EXPECT_EQ(store.notice(), "");
  EXPECT_EQ(
      SQLite::Database(folder / "k.db", SQLite::OPEN_READONLY).execAndGet("PRAGMA journal_mode").getString(),
      "wal");
}

TEST(Store, SaysWhereWriteAheadLoggingCannotWork) {
  const TempFolder folder;
  sqlite3_vfs* usual = sqlite3_vfs_find(nullptr);
  sqlite3_vfs_register(sqlite3_vfs_find("unix-dotfile"), 1);  // has no shared memory, as a network folder
  {
    Store store(folder / "k.db", Store::Mode::read_write);
    EXPECT_THAT(store.notice(), HasSubstr("write-ahead"));
    std::vector<ArmRecord> arms = example_arms();
    store.begin_run(example_run("r"), arms);
    store.commit_group("r", group_of(arms, 1));
    EXPECT_EQ(store.done_groups("r").size(), 1U);
  }
  sqlite3_vfs_register(usual, 1);
}

// --------------------------------------------------------------------------------------------------------
// migration

TEST(Migrate, BacksUpThenAppliesTheMissingSteps) {
  const TempFolder folder;
  {
    Store store(folder / "k.db", Store::Mode::read_write);
    std::vector<ArmRecord> arms = example_arms();
    store.begin_run(example_run("r"), arms);
  }
  const std::vector<std::string_view> steps = {"ALTER TABLE run ADD COLUMN branch TEXT",
                                               "CREATE TABLE baseline(name TEXT) STRICT"};
  SQLite::Database database(folder / "k.db", SQLite::OPEN_READWRITE);
  migrate(database, folder / "k.db", steps);
  EXPECT_EQ(database.execAndGet("PRAGMA user_version").getInt(), 3);
  EXPECT_EQ(database.execAndGet("SELECT count(*) FROM run WHERE branch IS NULL").getInt(), 1);
  EXPECT_TRUE(database.tableExists("baseline"));
  migrate(database, folder / "k.db", steps);  // nothing left to do, no second backup

  int backups = 0;
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    backups += entry.path().string().find("backup") != std::string::npos ? 1 : 0;
  }
  EXPECT_EQ(backups, 1);
  const Store backup(folder / "k.db.v1.backup", Store::Mode::read_only);
  EXPECT_EQ(backup.runs().size(), 1U);
}

TEST(Migrate, AStepThatFailsChangesNothing) {
  const TempFolder folder;
  { Store store(folder / "k.db", Store::Mode::read_write); }
  const std::vector<std::string_view> steps = {"CREATE TABLE fine(a); CREATE TABLE run(a)"};
  {
    SQLite::Database database(folder / "k.db", SQLite::OPEN_READWRITE);
    EXPECT_THROW(migrate(database, folder / "k.db", steps), SQLite::Exception);
    EXPECT_EQ(database.execAndGet("PRAGMA user_version").getInt(), 1);
    EXPECT_FALSE(database.tableExists("fine"));
  }
  EXPECT_NO_THROW(Store(folder / "k.db", Store::Mode::read_write));
}

}  // namespace
}  // namespace kveval
