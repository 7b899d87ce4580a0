// The program itself, from outside: exit codes, streams, signals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "engine/cpu/kernels.h"
#include "engine/profile.h"
#include "tests/harness/fixtures.h"
#include "tests/harness/program.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::dump;
using testing::example_arms;
using testing::example_run;
using ::testing::HasSubstr;
using testing::kveval;
using ::testing::Not;
using testing::Outcome;
using testing::Program;
using testing::read;
using ::testing::StartsWith;
using testing::TempFolder;
using testing::with;

// About 50 ms of work.
const std::vector<std::string> kSmallRun = {"run", "niah",      "--lengths", "1k",         "--haystacks",
                                            "2",   "--needles", "2",         "--profiles", "fp16,e5m2"};

TEST(CommandLine, HelpAndVersionAreNoErrors) {
  const TempFolder folder;
  EXPECT_THAT(kveval(folder, {"--version"}).out, StartsWith("kveval 0."));
  for (const char* verb : {"run", "resume", "list", "show", "compare", "report", "bench", "model"}) {
    const Outcome help = kveval(folder, {verb, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.out, HasSubstr(verb));
    EXPECT_EQ(help.err, "");
  }
}

TEST(CommandLine, WhatCannotBeDoneIsOneSentenceAndExit2) {
  const TempFolder folder;
  std::ofstream(folder / "text.db") << std::string(4096, 'x');
  std::ofstream(folder / "bad.json") << "{ \"name\": ";
  SQLite::Database(folder / "theirs.db", SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE)
      .exec("CREATE TABLE t(a)");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "say what to do"},
      {{"--seed", "1"}, "--seed"},

      {{"frobnicate"}, "there is no command 'frobnicate'\n        behind 'kveval' come: run, resume,"},
      {{"frobnicate", "list"}, "there is no command 'frobnicate'"},
      {{"run", "--frob"}, "--frob\n        'kveval run --help'"},
      {{"run", "nosuch"}, "nosuch"},
      {{"run", "bad.json"}, "bad.json"},
      {{"run", "--profiles", "fp17"}, "fp17"},
      {{"run", "--profiles", "fp16,fp16"}, "named twice"},
      {{"run", "--profiles", "fp16,e4m3,mode=transcode"}, "mode"},
      {{"run", "--lengths", "8q"}, "8q"},
      {{"run", "--lengths", "999m"}, "999m"},
      {{"run", "--lengths", "100"}, "100"},
      {{"run", "--lengths", "8k,8k"}, "twice"},
      {{"run", "--lengths", ""}, "length"},
      {{"run", "--model", "nosuch"}, "nosuch"},
      {{"run", "--model", "phantom:zeta=1"}, "zeta"},
      {{"run", "--mode", "sideways"}, "sideways"},
      {{"run", "--compute", "fp64"}, "--compute"},
      {{"bench", "--compute", "fp16"}, "--compute"},
      {{"run", "--lengths", "512k"}, "the phantom's context=524288 makes room"},
      {{"bench", "--profiles", "e4m3,mode=transcode"}, "no prefill of its own"},
      {{"bench", "--questions", "-1"}, "--questions"},
      {{"bench", "--lengths", "1m"}, "the phantom's context=1048608 makes room"},
      {{"run", "--haystacks", "0"}, "--haystacks"},
      {{"run", "--haystacks", "many"}, "--haystacks"},
      {{"run", "--needles", "0"}, "needles"},
      {{"run", "--seed", "-1"}, "--seed"},
      {{"run", "--page", "100"}, "--page"},
      {{"run", "--threads", "-3"}, "--threads"},
      {{"run", "--haystack", "nosuch.txt"}, "nosuch.txt"},
      {{"--color", "sometimes", "list"}, "sometimes"},
      {{"list", "sandwiches"}, "sandwiches"},
      {{"show"}, "kveval.db"},
      {{"resume"}, "kveval.db"},
      {{"model"}, "say what to do with models"},
      {{"model", "frobnicate"},
       "there is no command 'frobnicate'\n        behind 'kveval model' come: list, "},
      {{"model", "inspect"}, "'kveval model inspect --help'"},
      {{"model", "inspect", "nosuch"}, "nosuch"},
      {{"model", "pull", "nosuch"}, "nosuch"},
      {{"model", "pull", "smollm2-135m"}, "HOME is not set"},
      {{"model", "tokenize", "phantom"}, "either a text or --jsonl"},
      {{"model", "tokenize", "phantom", "a\xff"}, "the text is not UTF-8 from byte 2 on"},
      {{"model", "tokenize", "phantom", "--jsonl", "nosuch"}, "nosuch"},
      {{"model", "tokenize", "phantom", "--jsonl", "."}, "cannot be read"},
      {{"model", "logits", "phantom"}, "--tokens"},
      {{"model", "logits", "phantom", "--tokens", "nosuch"}, "nosuch"},
      {{"model", "logits", "phantom", "--tokens", "bad.json"}, "bad.json"},
      {{"model", "generate", "phantom"}, "prompt"},
      {{"model", "generate", "phantom", "\xff"}, "the prompt is not UTF-8 from byte 1 on"},
      {{"model", "generate", "phantom", "a", "--system", "b"}, "no place for a system text"},
      {{"model", "generate", "phantom", "a", "--max-tokens", "1000000"}, "do not fit"},
      {{"model", "generate", "phantom", "a", "--profile", "fp17"}, "fp17"},
      {{"--db", "nosuch/k.db", "run"}, "nosuch"},
      {{"--db", "text.db", "list"}, "not a SQLite database"},
      {{"--db", "text.db", "run"}, "not a SQLite database"},
      {{"--db", "theirs.db", "run"}, "another program"},
      {{"--db", ".", "list"}, "folder"}};
  for (const auto& [arguments, words] : cases) {
    const Outcome outcome = kveval(folder, arguments);
    EXPECT_EQ(outcome.code, 2) << words << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(StartsWith("kveval: "), HasSubstr(words)));
    EXPECT_EQ(outcome.out, "");
    EXPECT_FALSE(fs::exists(folder / "kveval.db")) << words;
  }
}

TEST(CommandLine, ARunCanBeListedShownAndCompared) {
  const TempFolder folder;
  const Outcome run = kveval(folder, kSmallRun);
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, AllOf(HasSubstr("estimate 2 groups, 8 answers"), HasSubstr("peak memory"),
                             HasSubstr("kveval compare"), HasSubstr("kveval report")));
  EXPECT_THAT(run.out, AllOf(HasSubstr("fp16"), HasSubstr("e5m2"), HasSubstr("1k")));

  const auto list = nlohmann::json::parse(kveval(folder, {"list", "--json"}).out);
  EXPECT_EQ(list["schema"], "kveval.list-runs/1");
  ASSERT_EQ(list["runs"].size(), 1U);
  EXPECT_EQ(list["runs"][0]["status"], "complete");
  EXPECT_EQ(list["runs"][0]["groups_done"], 2);
  const std::string id = list["runs"][0]["id"];
  EXPECT_THAT(run.out, HasSubstr(id));
  EXPECT_THAT(kveval(folder, {"list"}).out, HasSubstr(id));

  const auto shown = nlohmann::json::parse(kveval(folder, {"show", id, "--json"}).out);
  EXPECT_EQ(shown["schema"], "kveval.show-run/1");
  ASSERT_EQ(shown["arms"].size(), 2U);
  EXPECT_EQ(shown["arms"][0]["baseline"], true);
  EXPECT_EQ(shown["arms"][0]["cells"][0]["scored"], 4);
  EXPECT_THAT(kveval(folder, {"show", id, "--samples"}).out, HasSubstr("\n4  "));
  const auto layers = nlohmann::json::parse(kveval(folder, {"show", id, "--layers", "--json"}).out);
  ASSERT_EQ(layers["profiles"][1]["layers"].size(), 2U);
  EXPECT_GT(layers["profiles"][1]["layers"][1]["keys"]["relative_error"], 0.01);
  EXPECT_THAT(kveval(folder, {"show", id, "--layers"}).out, HasSubstr("e5m2: keys"));

  const auto sample = nlohmann::json::parse(kveval(folder, {"show", id + ":2", "--json"}).out);
  EXPECT_EQ(sample["schema"], "kveval.show-sample/1");
  EXPECT_EQ(sample["answers"].size(), 2U);
  EXPECT_TRUE(sample["answers"][1]["kl"].is_number());
  const std::string key = sample["item_key"];
  const Outcome by_key = kveval(folder, {"show", key.substr(0, 12)});
  EXPECT_EQ(by_key.code, 0);
  EXPECT_THAT(by_key.out, AllOf(HasSubstr("expected"), HasSubstr(std::string(sample["expected"])),
                                HasSubstr("[" + std::string(sample["expected"]) + "]")));
  EXPECT_EQ(kveval(folder, {"show", id + ":5"}).code, 2);
  EXPECT_EQ(kveval(folder, {"show", id + ":x"}).code, 2);
  EXPECT_EQ(kveval(folder, {"compare", id}).code, 0);
  EXPECT_EQ(kveval(folder, {"report", id, "-o", "r.html"}).code, 0);
  EXPECT_THAT(kveval(folder, {"resume", id}).err, HasSubstr("is complete"));
}

TEST(CommandLine, WhatIsListedExists) {
  const TempFolder folder;
  const auto names = [&](const std::string& what) {
    std::vector<std::string> all;
    const auto document = nlohmann::json::parse(kveval(folder, {"list", what, "--json"}).out);
    for (const auto& one : document[what])
      if (one.value("present", true)) all.push_back(one["name"]);
    EXPECT_FALSE(all.empty());
    return all;
  };
  for (const std::string& profile : names("profiles")) EXPECT_NO_THROW(parse_profile(profile)) << profile;
  for (const std::string& model : names("models")) {
    EXPECT_EQ(kveval(folder, with(kSmallRun, {"--dry-run", "--model", model})).code, 0);
  }
  for (const std::string& suite : names("suites")) {
    EXPECT_EQ(kveval(folder, {"run", "--dry-run", suite}).code, 0);
  }
}

TEST(CommandLine, QuietIsTheRunIdAlone) {
  const TempFolder folder;
  const Outcome run = kveval(folder, with(kSmallRun, {"-q"}));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
  EXPECT_EQ(run.out.size(), std::string("20260101-000000-0000\n").size());
}

TEST(CommandLine, ADryRunPrintsThePlanAndTouchesNothing) {
  const TempFolder folder;
  const Outcome run = kveval(folder, with(kSmallRun, {"--dry-run"}));
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.out, HasSubstr("estimate 2 groups, 8 answers"));
  EXPECT_EQ(run.err, "");
  EXPECT_FALSE(fs::exists(folder / "kveval.db"));
}

TEST(CommandLine, FlagBeatsEnvironmentBeatsDefault) {
  const TempFolder folder;
  const std::map<std::string, std::string> environment = {
      {"KVEVAL_DB", "env.db"}, {"KVEVAL_PROFILES", "bf16,int8"}, {"KVEVAL_LENGTHS", "2k"}};
  const std::vector<std::string> plan = {"run", "--dry-run"};
  EXPECT_THAT(kveval(folder, plan).out, AllOf(HasSubstr("e5m2"), HasSubstr("32k")));
  EXPECT_THAT(kveval(folder, plan, environment).out,
              AllOf(HasSubstr("bf16"), HasSubstr("2k"), Not(HasSubstr("32k")), Not(HasSubstr("e5m2"))));
  EXPECT_THAT(kveval(folder, with(plan, {"--lengths", "4k"}), environment).out,
              AllOf(HasSubstr("bf16"), HasSubstr("4k"), Not(HasSubstr("2k"))));
  EXPECT_EQ(kveval(folder, with(kSmallRun, {"--profiles", "fp16"}), environment).code, 2);  // given twice
  EXPECT_EQ(kveval(folder, {"run", "--lengths", "1k", "--haystacks", "1"}, environment).code, 0);
  EXPECT_TRUE(fs::exists(folder / "env.db"));
  EXPECT_EQ(
      kveval(folder, {"--db", "flag.db", "run", "--lengths", "1k", "--haystacks", "1"}, environment).code, 0);
  EXPECT_TRUE(fs::exists(folder / "flag.db"));
  EXPECT_FALSE(fs::exists(folder / "kveval.db"));
  EXPECT_EQ(kveval(folder, plan, {{"KVEVAL_SEED", "abc"}}).code, 2);
}

TEST(CommandLine, ColourIsObeyed) {
  const TempFolder folder;
  ASSERT_EQ(kveval(folder, kSmallRun).code, 0);
  const auto shows_colour = [&](const std::vector<std::string>& arguments,
                                const std::map<std::string, std::string>& environment) {
    return kveval(folder, arguments, environment).out.find('\033') != std::string::npos;
  };
  EXPECT_FALSE(shows_colour({"show", "latest:1"}, {}));  // a file is no terminal
  EXPECT_TRUE(shows_colour({"--color", "always", "show", "latest:1"}, {}));
  EXPECT_TRUE(
      shows_colour({"--color", "always", "show", "latest:1"}, {{"NO_COLOR", "1"}}));  // said explicitly
  EXPECT_FALSE(shows_colour({"--color", "never", "show", "latest:1"}, {}));
}

TEST(CommandLine, ModelOutputCannotCommandTheTerminal) {
  const TempFolder folder;
  {
    Store store(folder / "kveval.db", Store::Mode::read_write);
    RunRecord run = example_run("20260101-000000-aaaa");
    run.model = "m\033[31m";
    std::vector<ArmRecord> arms = example_arms();
    arms[0].name = "fp16\033]0;";
    store.begin_run(run, arms);
    GroupResult group;
    group.haystack.task = "niah\007";
    group.haystack.length = 1024;
    group.haystack.prefix_sha = "a";
    group.haystack.prefix_text = "before\033[2J evil\033 after";
    ItemRecord item;
    item.item_key = "0123456789abcdef";
    item.prompt_sha = "p";
    item.question = "q\033[1m";
    item.expected = "evil\033";
    group.items = {item};
    SampleRecord sample;
    sample.correct = sample.strict = sample.first = sample.contains = false;
    sample.stop = "eos";
    sample.output = std::string("\033[31m\0\x9b red \xe2\x80\xae", 13);
    SampleRecord error;
    error.state = SampleState::error;
    error.error = "\033c";
    group.arms = {{arms[0].id, {sample}, {}}, {arms[1].id, {error}, {}}};
    store.commit_group(run.id, group);
  }
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"list"},
                                             {"show", "latest"},
                                             {"show", "latest", "--samples"},
                                             {"show", "latest:1"},
                                             {"list", "--json"},
                                             {"show", "latest:1", "--json"},
                                             {"show", "latest", "--json"}}) {
    const Outcome outcome = kveval(folder, arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    for (const char c : outcome.out) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 32);
    EXPECT_THAT(outcome.out, Not(HasSubstr("\xe2\x80\xae"))) << arguments.back();
  }
}

// ---- arithmetic

TEST(CommandLine, BfloatArithmeticIsRunOrRefused) {
  const TempFolder folder;
  const std::vector<std::string> run = {"run", "--lengths", "1k", "--haystacks", "1", "--compute", "bf16"};
  const Outcome planned = kveval(folder, with(run, {"--dry-run"}));
  if (cpu::kernels_named("avx512", Compute::bfloat16) == nullptr) {
    EXPECT_EQ(planned.code, 2);
    EXPECT_THAT(planned.err, HasSubstr("AVX512_BF16"));
    return;
  }
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_THAT(planned.out, HasSubstr("bfloat16"));
  EXPECT_THAT(planned.out, HasSubstr("bf16"));
  EXPECT_THAT(planned.out, Not(HasSubstr("fp16")));
  std::vector<std::string> ids;
  for (const char* compute : {"bf16", "float32"}) {
    Outcome outcome = kveval(folder, {"-q", "run", "--lengths", "1k", "--haystacks", "1", "--profiles",
                                      "bf16", "--compute", compute});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    ids.push_back(outcome.out.substr(0, outcome.out.find('\n')));
  }
  const Outcome compared = kveval(folder, {"compare", ids[0], ids[1]});
  EXPECT_NE(compared.code, 0);
  EXPECT_THAT(compared.err, HasSubstr("compute type"));
}

// ---- speed is not a result

TEST(CommandLineSlow, ThreadsChunksAndPagesChangeNoRow) {
  const auto rows = [](const std::vector<std::string>& settings) {
    const TempFolder folder;
    const std::vector<std::string> run = {
        "run", "--lengths", "1k", "--haystacks", "1", "--profiles", "fp16,e5m2,int8-tensor"};
    const Outcome outcome = kveval(folder, with(run, settings));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::string text = dump(folder / "kveval.db");
    return text.substr(text.find("\narm "));  // the run's own row tells the settings
  };
  const std::string usual = rows({});
  EXPECT_EQ(rows({"--threads", "1"}), usual);
  EXPECT_EQ(rows({"--threads", "2", "--chunk", "7", "--page", "64"}), usual);
  EXPECT_EQ(rows({"--chunk", "64", "--page", "256"}), usual);
}

// ---- signals

// With a profile whose static scales are measured once and must be the same after a resume.
const std::vector<std::string> kLongerRun = {"run",       "--lengths", "1k,2k",      "--haystacks",     "4",
                                             "--needles", "2",         "--profiles", "fp16,int8-tensor"};
constexpr size_t kLongerGroups = 8;

std::string unbroken_rows() {
  static const std::string rows = [] {
    const TempFolder folder;
    const Outcome outcome = kveval(folder, kLongerRun);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return dump(folder / "kveval.db");
  }();
  return rows;
}

// Waits until the run has committed `groups` groups; false when it ended before.
bool wait_for_groups(const TempFolder& folder, size_t groups) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (std::chrono::steady_clock::now() < deadline) {
    try {
      const Store store(folder / "kveval.db", Store::Mode::read_only);
      const std::vector<RunRecord> runs = store.runs();
      if (!runs.empty() && store.done_groups(runs.front().id).size() >= groups) {
        return runs.front().status == RunStatus::running;
      }
    } catch (const Error&) {
      // Not created yet.
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

void expect_resumes(const TempFolder& folder) {
  const Outcome outcome = kveval(folder, {"resume"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(dump(folder / "kveval.db"), unbroken_rows());
}

TEST(SignalsSlow, InterruptAndTerminateLeaveAResumableRun) {
  for (const int number : {SIGINT, SIGTERM}) {
    const TempFolder folder;
    Program program(folder, kLongerRun);
    ASSERT_TRUE(wait_for_groups(folder, 2));
    program.signal(number);
    const Outcome outcome = program.wait();
    EXPECT_EQ(outcome.code, 130) << outcome.err;
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("was interrupted after"), HasSubstr("of 8 groups"),
                                   HasSubstr("'kveval resume ")));
    EXPECT_EQ(outcome.out, "");
    {
      const Store store(folder / "kveval.db", Store::Mode::read_only);
      EXPECT_EQ(store.runs().front().status, RunStatus::interrupted);
      EXPECT_LT(store.done_groups(store.runs().front().id).size(), kLongerGroups);
    }
    expect_resumes(folder);
  }
}

TEST(SignalsSlow, KilledAtAnyInstantARunResumes) {
  // Before the first commit, after one, and at odd moments in between.
  const std::vector<std::pair<size_t, int>> moments = {{0, 0}, {2, 25}, {6, 5}};
  for (const auto& [groups, milliseconds] : moments) {
    const TempFolder folder;
    Program program(folder, kLongerRun);
    ASSERT_TRUE(wait_for_groups(folder, groups));
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    program.signal(SIGKILL);
    EXPECT_EQ(program.wait().code, 128 + SIGKILL);
    expect_resumes(folder);
  }
}

TEST(SignalsSlow, TheSecondOneDoesNotWait) {
  const TempFolder folder;
  Program program(folder, {"run", "--lengths", "64k", "--haystacks", "1"});
  ASSERT_TRUE(wait_for_groups(folder, 0));
  // Stopped, the process cannot act on the first before the second has arrived.
  program.signal(SIGSTOP);
  program.signal(SIGINT);
  program.signal(SIGTERM);
  program.signal(SIGCONT);
  EXPECT_EQ(program.wait().code, 130);
}

TEST(SignalsSlow, ALivingRunIsNotResumed) {
  const TempFolder folder;
  Program program(folder, kLongerRun);
  ASSERT_TRUE(wait_for_groups(folder, 1));
  program.signal(SIGSTOP);
  const TempFolder other;  // its output must not overwrite that of the run
  const std::string db = (folder / "kveval.db").string();
  const std::string id = Store(folder / "kveval.db", Store::Mode::read_only).runs().front().id;
  const Outcome named = kveval(other, {"--db", db, "resume", id});
  EXPECT_EQ(named.code, 2);
  EXPECT_THAT(named.err, HasSubstr("still running as process " + std::to_string(program.pid())));
  EXPECT_EQ(kveval(other, {"--db", db, "resume"}).code, 2);
  program.signal(SIGKILL);
  program.signal(SIGCONT);
  program.wait();
  expect_resumes(folder);
}

}  // namespace
}  // namespace kveval
