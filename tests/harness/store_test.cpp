#include "harness/store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "tests/harness/fixtures.h"
#include "tests/harness/store_records.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using testing::error_of;
using testing::example_arms;
using testing::example_run;
using testing::group_of;
using ::testing::HasSubstr;
using testing::haystack_of;
using testing::kImpatient;
using testing::TempFolder;

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

TEST(Store, KeepsTheNewestSpeedOfEachKeyProfileAndLength) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  const SpeedKey key{"30de1", "float32", "avx2", 2, "here", "a CPU"};
  SpeedRecord first{key, "fp16", 8192, 1.5e12, 9.25, 0.008, 1000};
  SpeedRecord longer = first, other_profile = first;
  longer.length = 32768;
  other_profile.profile = "int8";
  store.save_speeds({longer, first, other_profile});
  first.prefill_seconds = 8.5;
  first.measured_ms = 2000;
  store.save_speeds({first});

  const std::vector<SpeedRecord> speeds = store.speeds(key);
  ASSERT_EQ(speeds.size(), 3U);
  EXPECT_EQ(speeds[0].profile, "fp16");
  EXPECT_EQ(speeds[0].length, 8192);
  EXPECT_EQ(speeds[0].prefix_flops, 1.5e12);
  EXPECT_EQ(speeds[0].prefill_seconds, 8.5);
  EXPECT_EQ(speeds[0].decode_seconds, 0.008);
  EXPECT_EQ(speeds[0].measured_ms, 2000);
  EXPECT_EQ(speeds[1].length, 32768);
  EXPECT_EQ(speeds[1].prefill_seconds, 9.25);
  EXPECT_EQ(speeds[2].profile, "int8");

  // Of nobody else.
  const auto changed = [&](const std::function<void(SpeedKey&)>& change) {
    SpeedKey other = key;
    change(other);
    return store.speeds(other).size();
  };
  EXPECT_EQ(changed([](SpeedKey& k) { k.model_hash = "x"; }), 0U);
  EXPECT_EQ(changed([](SpeedKey& k) { k.compute = "bfloat16"; }), 0U);
  EXPECT_EQ(changed([](SpeedKey& k) { k.simd = "avx512"; }), 0U);
  EXPECT_EQ(changed([](SpeedKey& k) { k.threads = 1; }), 0U);
  EXPECT_EQ(changed([](SpeedKey& k) { k.host = "there"; }), 0U);
  EXPECT_EQ(changed([](SpeedKey& k) { k.cpu = "another CPU"; }), 0U);
}

TEST(Store, RefusesASpeedThatIsNone) {
  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  const SpeedRecord good{{"m", "float32", "avx2", 2, "h", "c"}, "fp16", 8192, 1, 1, 1, 1};
  SpeedRecord bad = good;
  bad.prefill_seconds = 0;
  EXPECT_THROW(store.save_speeds({good, bad}), Error);
  EXPECT_TRUE(store.speeds(good.key).empty());
}

// ---- several writers

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

TEST(Store, AReaderCannotWrite) {
  const TempFolder folder;
  std::vector<ArmRecord> arms = example_arms();
  { Store store(folder / "k.db", Store::Mode::read_write); }
  Store reader(folder / "k.db", Store::Mode::read_only);
  EXPECT_EQ(error_of([&] { reader.begin_run(example_run("r"), arms); }).kind, ErrorKind::bad_file);
}

// ---- journal

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

}  // namespace
}  // namespace kveval
