// Whole runs against a scripted engine: what is stored, and that an interrupted run ends like an unbroken
// one.
#include "harness/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <csignal>
#include <new>
#include <nlohmann/json.hpp>

#include "engine/compute.h"
#include "engine/fake_engine.h"
#include "harness/environment.h"
#include "harness/record.h"
#include "tests/harness/fixtures.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

using testing::ByteTokenizer;
using testing::dump;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempFolder;

const ByteTokenizer kTokenizer;

FakeScript run_script() {
  FakeScript script;
  script.info.model = "fake:size=1";
  script.info.model_hash = "30de1";
  script.info.compute = "float32";
  script.info.simd = "none";
  script.info.context = 1 << 20;
  script.info.vocabulary = kTokenizer.vocabulary_size();
  script.info.tokenizer = &kTokenizer;
  script.generate = [](const FakeTurn& turn) {
    const std::string noise = hash_hex(hash_hex(turn.turn.tokens) + canonical(turn.profile));
    Reply reply;
    reply.tokens = kTokenizer.encode(noise.substr(0, 5));
    reply.text = noise.substr(0, 5);
    reply.stop = Stop::eos;
    reply.timing.reply_seconds = 0.25;
    return reply;
  };
  script.diagnostics = [](const PromptGroup& group, const Profile&) {
    return std::vector<CacheDiagnostic>{{0, 0, true, group.prefix.tokens.size(), 1, 2, 3.0F, 0.5, 0.25}};
  };
  return script;
}

constexpr int kGroups = 4, kArms = 3;

Suite small_suite() {
  Suite suite = load_suite("niah");
  suite.families.front().lengths = {1024, 2048};
  suite.families.front().haystacks = 2;
  suite.families.front().parameters = task_named("niah").resolve_parameters(nlohmann::json{{"needles", 2}});
  return suite;
}

Plan small_plan(const Engine& engine) {
  return make_plan(small_suite(), plain_chat(), plan_arms(parse_profile_list("fp16,int8,e4m3"), engine),
                   engine);
}

// Begins a run and carries it out under `script`; returns its id.
std::string begin(const fs::path& path, FakeScript script, const RunHooks& hooks) {
  FakeEngine engine(std::move(script));
  const Plan plan = small_plan(engine);
  Store store(path, Store::Mode::read_write);
  const RunRecord run =
      record_of(small_suite(), plan, "fake", "auto", engine.describe(), this_environment({"kveval"}), 1000);
  std::vector<ArmRecord> arms = arm_records(plan);
  store.begin_run(run, arms);
  run_plan(store, run.id, arms, plan, engine, hooks);
  return run.id;
}

// What `kveval resume` does, from the stored configuration alone.
void resume(const fs::path& path, size_t* calls = nullptr) {
  FakeEngine engine(run_script());
  Store store(path, Store::Mode::update);
  Environment environment = this_environment({"kveval", "resume"});
  const RunRecord run = find_resumable(store, "", environment, now_ms());
  const RunConfig config = config_of(run);
  const Suite suite = suite_from_json(run.suite_json);
  check_same(run, suite, plain_chat(), engine.describe());
  const Plan plan = make_plan(suite, plain_chat(), plan_arms(config.profiles, engine), engine);
  const std::vector<ArmRecord> arms = store.arms(run.id);
  check_arms(run, arms, plan);
  store.claim(run.id, environment.host, environment.pid, now_ms());
  run_plan(store, run.id, arms, plan, engine, {});
  if (calls != nullptr) *calls = engine.calls();
}

std::string unbroken() {
  static const std::string dumped = [] {
    const TempFolder folder;
    begin(folder / "k.db", run_script(), {});
    return dump(folder / "k.db");
  }();
  return dumped;
}

TEST(Run, StoresEverything) {
  const TempFolder folder;
  const std::string id = begin(folder / "k.db", run_script(), {});
  const Store store(folder / "k.db", Store::Mode::read_only);
  EXPECT_EQ(store.find_run(id).status, RunStatus::complete);
  EXPECT_EQ(store.done_groups(id).size(), size_t{kGroups});
  ASSERT_EQ(store.arms(id).size(), size_t{kArms});
  for (const ArmRecord& arm : store.arms(id)) {
    EXPECT_EQ(store.samples(arm.id).size(), 8U);
    for (const SampleView& view : store.samples(arm.id)) EXPECT_EQ(view.sample.kl.has_value(), !arm.baseline);
  }
  EXPECT_EQ(dump(folder / "k.db"), unbroken());
}

// A process that dies without a word: no catch clause of the harness sees it.
struct Killed {};

TEST(Run, ResumesAfterADeathInAnyArmOfAnyGroup) {
  for (size_t at = 0; at < size_t{kGroups * kArms}; ++at) {
    const TempFolder folder;
    FakeScript script = run_script();
    script.on_run = [at](const Profile&, size_t call) {
      if (call == at) throw Killed{};
    };
    EXPECT_THROW(begin(folder / "k.db", script, {}), Killed);
    const size_t whole = at / kArms;
    {
      const Store store(folder / "k.db", Store::Mode::read_only);
      EXPECT_EQ(store.runs().front().status, RunStatus::running);
      EXPECT_EQ(store.done_groups(store.runs().front().id).size(), whole);
    }
    size_t calls = 0;
    resume(folder / "k.db", &calls);
    EXPECT_EQ(calls, (kGroups - whole) * kArms);  // what is done is not done again
    EXPECT_EQ(dump(folder / "k.db"), unbroken());
  }
}

TEST(Run, ResumesAfterSigkill) {
  for (const size_t at : {size_t{0}, size_t{4}, size_t{11}}) {
    const TempFolder folder;
    const pid_t child = fork();
    if (child == 0) {
      FakeScript script = run_script();
      script.on_run = [at](const Profile&, size_t call) {
        if (call == at) kill(getpid(), SIGKILL);
      };
      begin(folder / "k.db", script, {});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status));
    resume(folder / "k.db");
    EXPECT_EQ(dump(folder / "k.db"), unbroken());
  }
}

TEST(Run, CancelsWhereverItIsAsked) {
  // Count how often a whole run asks, then say stop at a spread of those places.
  int asked = 0;
  {
    const TempFolder folder;
    begin(folder / "k.db", run_script(), {[&] { return ++asked < 0; }, {}});
  }
  ASSERT_GT(asked, 20);
  for (int at = 1; at <= asked; at += std::max(1, asked / 12)) {
    const TempFolder folder;
    int so_far = 0;
    const Error error = error_of([&] {
      begin(folder / "k.db", run_script(), {[&] { return ++so_far >= at; }, {}});
    });
    EXPECT_EQ(error.kind, ErrorKind::cancelled);
    EXPECT_THAT(error.what(), HasSubstr("interrupted after"));
    EXPECT_THAT(error.hint, HasSubstr("kveval resume"));
    EXPECT_EQ(so_far, at);  // nothing more is asked for once it was refused
    EXPECT_EQ(Store(folder / "k.db", Store::Mode::read_only).runs().front().status, RunStatus::interrupted);
    resume(folder / "k.db");
    EXPECT_EQ(dump(folder / "k.db"), unbroken());
  }
}

TEST(Run, AFailureOfTheEngineIsKeptAndResumable) {
  const std::vector<std::pair<std::function<void()>, std::string>> failures = {
      {[] { throw Error(ErrorKind::run, "out of pages", "buy memory"); }, "out of pages"},
      {[] { throw std::bad_alloc(); }, "out of memory"},
      {[] { throw std::runtime_error("a surprise"); }, "a surprise"}};
  for (const auto& [fail, words] : failures) {
    const TempFolder folder;
    FakeScript script = run_script();
    const auto action = fail;
    script.on_run = [action](const Profile&, size_t call) {
      if (call == 7) action();
    };
    const Error error = error_of([&] { begin(folder / "k.db", script, {}); });
    EXPECT_EQ(error.kind, ErrorKind::run);
    EXPECT_EQ(error.what(), words);
    EXPECT_FALSE(error.hint.empty());
    {
      const Store store(folder / "k.db", Store::Mode::read_only);
      EXPECT_EQ(store.runs().front().status, RunStatus::failed);
      EXPECT_EQ(store.done_groups(store.runs().front().id).size(), 2U);
    }
    resume(folder / "k.db");
    EXPECT_EQ(dump(folder / "k.db"), unbroken());
  }
}

TEST(Run, ProgressRisesToTheWhole) {
  const TempFolder folder;
  double last = 0, total = 0;
  size_t groups = 0;
  begin(folder / "k.db", run_script(), {{}, [&](const Progress& progress) {
                                          EXPECT_GE(progress.done_cost, last - 1e-9);
                                          EXPECT_LE(progress.done_cost, progress.total_cost * (1 + 1e-9));
                                          EXPECT_GE(progress.done, groups);
                                          EXPECT_FALSE(progress.place.empty());
                                          last = progress.done_cost;
                                          total = progress.total_cost;
                                          groups = progress.done;
                                        }});
  EXPECT_GT(total, 0);
  EXPECT_NEAR(last, total, 1e-9 * total);
  EXPECT_EQ(groups, size_t{kGroups});
}

// ---- resume

struct Interrupted {
  TempFolder folder;
  fs::path path = folder / "k.db";
  Interrupted() {
    EXPECT_THROW(begin(path, run_script(), {[] { return true; }, {}}), Error);
  }
};

TEST(Resume, KeepsStaticScales) {
  const TempFolder folder;
  FakeScript script = run_script();
  script.resolve = [](const Profile& profile, std::span<const Tokens>) {
    Profile resolved = profile;
    resolved.k.static_scales = {0.1F, 1.0F / 3};
    resolved.v.static_scales = {0.2F, 2.0F / 3};
    return resolved;
  };
  FakeEngine engine(script);
  const Profile resolved = engine.resolve(parse_profile("int8-tensor"), {});
  const Plan plan =
      make_plan(small_suite(), plain_chat(), plan_arms({parse_profile("fp16"), resolved}, engine), engine);
  const RunRecord run =
      record_of(small_suite(), plan, "fake", "auto", engine.describe(), this_environment({}), 1);
  EXPECT_EQ(config_of(run).profiles, (std::vector<Profile>{parse_profile("fp16"), resolved}));
  EXPECT_EQ(config_of(run).model, "fake");
  EXPECT_EQ(config_of(run).chat, "auto");
}

TEST(Resume, KeepsTheArithmetic) {
  for (const Compute compute : {Compute::float32, Compute::bfloat16}) {
    FakeScript script = run_script();
    script.info.compute = name_of(compute);
    FakeEngine engine(script);
    const Plan plan =
        make_plan(small_suite(), plain_chat(), plan_arms({parse_profile("bf16")}, engine), engine);
    const RunRecord run =
        record_of(small_suite(), plan, "fake", "auto", engine.describe(), this_environment({}), 1);
    EXPECT_EQ(run.compute, name_of(compute));
    EXPECT_EQ(compute_named(run.compute), compute);
  }
}

TEST(Resume, RefusesAnotherModelTokenizerOrArithmetic) {
  const Interrupted interrupted;
  const Store store(interrupted.path, Store::Mode::read_only);
  const RunRecord run = store.runs().front();
  const Suite suite = suite_from_json(run.suite_json);
  const EngineInfo same = run_script().info;
  EXPECT_NO_THROW(check_same(run, suite, plain_chat(), same));
  EngineInfo other = same;
  other.model_hash = "another";
  EXPECT_THAT(error_of([&] { check_same(run, suite, plain_chat(), other); }).what(), HasSubstr("the model"));
  other = same;
  other.tokenizer = nullptr;
  EXPECT_THAT(error_of([&] { check_same(run, suite, plain_chat(), other); }).what(),
              HasSubstr("the tokenizer"));
  ChatTemplate chat = plain_chat();
  chat.before_prompt = "User: ";
  EXPECT_THAT(error_of([&] { check_same(run, suite, chat, same); }).what(), HasSubstr("the chat template"));
  other = same;
  other.compute = "bfloat16";
  EXPECT_THAT(error_of([&] { check_same(run, suite, plain_chat(), other); }).what(),
              HasSubstr("the arithmetic"));
  RunRecord older = run;
  const std::string version = "\"niah\":" + std::to_string(task_named("niah").version);
  older.config_json.replace(older.config_json.find(version), version.size(), "\"niah\":999");
  EXPECT_THAT(error_of([&] { check_same(older, suite, plain_chat(), same); }).what(),
              HasSubstr("the task versions"));
}

TEST(Resume, RefusesAConfigurationItCannotRead) {
  const Interrupted interrupted;
  RunRecord run = Store(interrupted.path, Store::Mode::read_only).runs().front();
  for (const char* broken :
       {"{}", "[1]", R"({"version":99})", R"({"version":1})", R"({"version":1,"model":3})",
        R"({"version":1,"model":"m","profiles":[{"k":1}]})"}) {
    run.config_json = broken;
    EXPECT_EQ(error_of([&] { config_of(run); }).kind, ErrorKind::bad_file) << broken;
  }
}

TEST(Resume, RefusesARunThatIsCompleteOrAlive) {
  const TempFolder folder;
  const std::string id = begin(folder / "k.db", run_script(), {});
  Store store(folder / "k.db", Store::Mode::read_write);
  const Environment here = this_environment({});
  EXPECT_THAT(error_of([&] { find_resumable(store, "", here, now_ms()); }).what(),
              HasSubstr("no run to resume"));
  EXPECT_THAT(error_of([&] { find_resumable(store, id, here, now_ms()); }).what(), HasSubstr("is complete"));

  // A process of this same program that lives: a child that waits to be killed.
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  store.claim(id, store.find_run(id).host, child, now_ms());
  const Error alive = error_of([&] { find_resumable(store, id, here, now_ms()); });
  EXPECT_EQ(alive.kind, ErrorKind::usage);
  EXPECT_THAT(alive.what(), HasSubstr("still running as process " + std::to_string(child)));
  EXPECT_THROW(find_resumable(store, "", here, now_ms()), Error);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(find_resumable(store, "", here, now_ms()).id, id);

  // Of another host only the heartbeat tells.
  Environment elsewhere = here;
  elsewhere.host = "elsewhere";
  const int64_t beat = store.find_run(id).heartbeat_ms;
  EXPECT_THROW(find_resumable(store, id, elsewhere, beat + 10000), Error);
  EXPECT_EQ(find_resumable(store, id, elsewhere, beat + 100000).id, id);
}

TEST(Environment, KnowsWhoRuns) {
  EXPECT_FALSE(is_running_elsewhere(getpid()));
  EXPECT_FALSE(is_running_elsewhere(0));
  EXPECT_FALSE(is_running_elsewhere(-1));
  EXPECT_FALSE(is_running_elsewhere(1));  // init lives, and is another program
  const Environment environment = this_environment({"kveval", "a b", "\xff"});
  EXPECT_FALSE(environment.host.empty());
  EXPECT_THAT(environment.argv_json, HasSubstr("a b"));
  EXPECT_EQ(environment.git_sha.empty(), !environment.git_dirty.has_value());
  EXPECT_GT(peak_rss_bytes(), size_t{1} << 20U);
  EXPECT_EQ(make_run_id(1796000000000).substr(0, 16), "20261130-005320-");
}

}  // namespace
}  // namespace kveval
