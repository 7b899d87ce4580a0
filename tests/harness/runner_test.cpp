#include "harness/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <csignal>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>

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

// ------------------------------------------------------------------------------------- numbers worked out by
// hand

std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)));
  return logits;
}

SampleGroup two_questions() {
  SampleGroup group;
  group.task = "niah";
  group.task_version = 1;
  group.length = 2048;
  group.haystack = 7;
  group.prefix = {1, 2, 3};
  group.prefix_text = "hay";
  group.prefix_sha = "sha";
  for (int i = 0; i < 2; ++i) {
    Sample sample;
    sample.item_key = "key" + std::to_string(i);
    sample.prompt_sha = "prompt" + std::to_string(i);
    sample.index = i;
    sample.stratum = i;
    sample.depth = 0.5 * i;
    sample.question = "question";
    sample.expected = "481793";
    sample.question_tokens = {10 + i};
    sample.target = {0, 1};
    group.samples.push_back(sample);
  }
  return group;
}

std::vector<PlannedArm> planned_arms(const std::string& list) {
  FakeScript script;
  const FakeEngine engine(script);
  return plan_arms(parse_profile_list(list), engine);
}

std::vector<ArmRecord> records_with_ids(const std::vector<PlannedArm>& arms) {
  Plan plan;
  plan.arms = arms;
  std::vector<ArmRecord> records = arm_records(plan);
  for (ArmRecord& record : records) record.id = 100 + record.position;
  return records;
}

GroupResult run_one(const SampleGroup& group, const std::string& profiles, FakeScript script) {
  FakeEngine engine(std::move(script));
  const std::vector<PlannedArm> arms = planned_arms(profiles);
  return run_group(group, records_with_ids(arms), arms, engine, [](size_t, uint64_t) { return true; });
}

Reply answer_of(Tokens tokens, std::string text, Stop stop) {
  Reply reply;
  reply.tokens = std::move(tokens);
  reply.text = std::move(text);
  reply.stop = stop;
  reply.timing.reply_seconds = 0.25;
  return reply;
}

bool is_baseline(const FakeTurn& turn) { return canonical(turn.profile) == "fp16"; }

// Position 0: the same in both arms. Position 1: base (1/2, 1/4, 1/8, 1/8), e4m3 (1/4, 1/2, 1/8, 1/8).
FakeScript hand_script() {
  FakeScript script;
  script.info.vocabulary = 4;
  script.logits = [](const FakeTurn& turn, size_t position) {
    if (position == 0 || is_baseline(turn)) return logits_of({0.5, 0.25, 0.125, 0.125});
    return logits_of({0.25, 0.5, 0.125, 0.125});
  };
  script.generate = replies_from({{"fp16",
                                   {{{10}, answer_of({4, 8, 1}, "481793", Stop::string)},
                                    {{11}, answer_of({4, 8, 1}, " 481793 .", Stop::length)}}},
                                  {"e4m3",
                                   {{{10}, answer_of({4, 9, 1}, "491793", Stop::eos)},
                                    {{11}, answer_of({4, 8}, "it is 481793", Stop::eos)}}}});
  script.diagnostics = [](const PromptGroup&, const Profile& profile) {
    return std::vector<CacheDiagnostic>{
        {1, 2, false, 100, 3, canonical(profile) == "fp16" ? 0U : 4U, 1.5F, 0.25, 16.0}};
  };
  return script;
}

TEST(RunGroup, NumbersWorkedOutByHand) {
  // e4m3 is named first, and still the baseline runs first.
  const GroupResult result = run_one(two_questions(), "e4m3,fp16", hand_script());
  ASSERT_EQ(result.arms.size(), 2U);
  EXPECT_EQ(result.arms[0].arm_id, 100);
  const std::vector<SampleRecord>& base = result.arms[0].samples;
  const std::vector<SampleRecord>& e4m3 = result.arms[1].samples;
  ASSERT_EQ(base.size(), 2U);
  ASSERT_EQ(e4m3.size(), 2U);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(base[i].state, SampleState::ok);
    EXPECT_EQ(e4m3[i].state, SampleState::ok);
    // -ln 1/2 - ln 1/4 and -ln 1/2 - ln 1/2.
    EXPECT_NEAR(base[i].gold_nll.value(), 3 * std::log(2.0), 1e-6);
    EXPECT_NEAR(e4m3[i].gold_nll.value(), 2 * std::log(2.0), 1e-6);
    EXPECT_EQ(base[i].kl, std::nullopt);
    EXPECT_EQ(base[i].top1_agreement, std::nullopt);
    EXPECT_EQ(base[i].first_divergence, std::nullopt);
    // Mean of 0 and 1/4 ln 2.
    EXPECT_NEAR(e4m3[i].kl.value(), std::log(2.0) / 8, 1e-6);
    EXPECT_EQ(e4m3[i].top1_agreement, 0.5);
    EXPECT_EQ(base[i].milliseconds, 250);
  }
  EXPECT_EQ(e4m3[0].first_divergence, 1);
  EXPECT_EQ(e4m3[1].first_divergence, 2);

  EXPECT_EQ(base[0].correct, true);
  EXPECT_EQ(base[0].strict, true);
  EXPECT_EQ(base[1].strict, false);
  EXPECT_EQ(base[1].first, true);
  EXPECT_EQ(base[1].contains, true);
  EXPECT_EQ(e4m3[0].correct, false);
  EXPECT_EQ(e4m3[0].contains, false);
  EXPECT_EQ(e4m3[1].first, false);
  EXPECT_EQ(e4m3[1].contains, true);
  for (const auto& samples : {base, e4m3}) {
    for (const SampleRecord& s : samples) {
      const Scores scores{s.strict.value(), s.first.value(), s.contains.value()};
      EXPECT_EQ(s.correct, scores.by(task_named("niah").primary));
    }
  }
  EXPECT_EQ(base[0].stop, "string");
  EXPECT_EQ(base[1].stop, "length");
  EXPECT_EQ(e4m3[0].stop, "eos");
  EXPECT_EQ(e4m3[1].output, "it is 481793");
  EXPECT_EQ(e4m3[1].output_tokens, (std::vector<int32_t>{4, 8}));

  ASSERT_EQ(result.arms[1].diagnostics.size(), 1U);
  const DiagnosticRecord& diagnostic = result.arms[1].diagnostics[0];
  EXPECT_EQ(diagnostic.arm_id, 101);
  EXPECT_EQ(diagnostic.layer, 1);
  EXPECT_EQ(diagnostic.kv_head, 2);
  EXPECT_FALSE(diagnostic.keys);
  EXPECT_EQ(diagnostic.elements, 100);
  EXPECT_EQ(diagnostic.clipped, 3);
  EXPECT_EQ(diagnostic.flushed, 4);
  EXPECT_EQ(diagnostic.absolute_max, 1.5);
  EXPECT_EQ(diagnostic.error_energy, 0.25);
  EXPECT_EQ(diagnostic.energy, 16.0);

  ASSERT_EQ(result.items.size(), 2U);
  EXPECT_EQ(result.items[1].item_key, "key1");
  EXPECT_EQ(result.items[1].prompt_sha, "prompt1");
  EXPECT_EQ(result.items[1].depth, 0.5);
  EXPECT_EQ(result.items[1].target_tokens, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(result.haystack.prefix_tokens, (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(result.haystack.index, 7);
}

TEST(RunGroup, WithoutABaselineNothingIsMeasuredAgainstOne) {
  const GroupResult result = run_one(two_questions(), "e4m3,int8", hand_script());
  for (const auto& arm : result.arms) {
    for (const SampleRecord& sample : arm.samples) {
      EXPECT_EQ(sample.kl, std::nullopt);
      EXPECT_EQ(sample.top1_agreement, std::nullopt);
      EXPECT_EQ(sample.first_divergence, std::nullopt);
    }
  }
}

TEST(RunGroup, AnErrorIsNeverAWrongAnswer) {
  FakeScript script = hand_script();
  const auto generate = script.generate;
  // Question 0 fails in e4m3 only, question 1 in the baseline only.
  script.generate = [generate](const FakeTurn& turn) {
    Reply reply = generate(turn);
    if (is_baseline(turn) == (turn.turn.tokens == Tokens{11})) {
      reply.error = Error(ErrorKind::run, "longer than the context");
    }
    return reply;
  };
  const GroupResult result = run_one(two_questions(), "fp16,e4m3", script);
  const SampleRecord& failed = result.arms[1].samples[0];
  EXPECT_EQ(failed.state, SampleState::error);
  EXPECT_EQ(failed.correct, std::nullopt);
  EXPECT_EQ(failed.strict, std::nullopt);
  EXPECT_EQ(failed.gold_nll, std::nullopt);
  EXPECT_EQ(failed.kl, std::nullopt);
  EXPECT_THAT(failed.error, HasSubstr("longer than the context"));
  EXPECT_EQ(result.arms[0].samples[0].state, SampleState::ok);
  EXPECT_EQ(result.arms[0].samples[1].state, SampleState::error);
  const SampleRecord& without_base = result.arms[1].samples[1];
  EXPECT_EQ(without_base.state, SampleState::ok);
  EXPECT_EQ(without_base.kl, std::nullopt);
  EXPECT_EQ(without_base.top1_agreement, std::nullopt);
  EXPECT_EQ(without_base.first_divergence, std::nullopt);
}

TEST(RunGroup, AFailedLikelihoodIsAnErrorToo) {
  FakeScript script = hand_script();
  script.score_error = [](const FakeTurn& turn) -> std::optional<Error> {
    if (is_baseline(turn)) return std::nullopt;
    return Error(ErrorKind::run, "no memory for logits");
  };
  const GroupResult result = run_one(two_questions(), "fp16,e4m3", script);
  EXPECT_EQ(result.arms[0].samples[0].state, SampleState::ok);
  EXPECT_EQ(result.arms[1].samples[0].state, SampleState::error);
  EXPECT_EQ(result.arms[1].samples[0].error, "no memory for logits");

  for (const float broken :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    script = hand_script();
    script.logits = [broken](const FakeTurn&, size_t) { return std::vector<float>{0, broken, 0, 0}; };
    const GroupResult unbounded = run_one(two_questions(), "fp16,e4m3", script);
    for (const auto& arm : unbounded.arms) EXPECT_EQ(arm.samples[0].state, SampleState::error);
  }
}

// --------------------------------------------------------------------------------------------------- whole
// runs

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
    return answer_of(kTokenizer.encode(noise.substr(0, 5)), noise.substr(0, 5), Stop::eos);
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
  return make_plan(small_suite(), plan_arms(parse_profile_list("fp16,int8,e4m3"), engine), engine);
}

// Begins a run and carries it out under `script`; returns its id.
std::string begin(const fs::path& path, FakeScript script, const RunHooks& hooks) {
  FakeEngine engine(std::move(script));
  const Plan plan = small_plan(engine);
  Store store(path, Store::Mode::read_write);
  const RunRecord run =
      record_of(small_suite(), plan, "fake", engine.describe(), this_environment({"kveval"}), 1000);
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
  check_same(run, suite, engine.describe());
  const Plan plan = make_plan(suite, plan_arms(config.profiles, engine), engine);
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
                                          EXPECT_GE(progress.groups_done, groups);
                                          EXPECT_FALSE(progress.cell.empty());
                                          last = progress.done_cost;
                                          total = progress.total_cost;
                                          groups = progress.groups_done;
                                        }});
  EXPECT_GT(total, 0);
  EXPECT_NEAR(last, total, 1e-9 * total);
  EXPECT_EQ(groups, size_t{kGroups});
}

// --------------------------------------------------------------------------------------------------------
// resume

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
  const Plan plan = make_plan(small_suite(), plan_arms({parse_profile("fp16"), resolved}, engine), engine);
  const RunRecord run = record_of(small_suite(), plan, "fake", engine.describe(), this_environment({}), 1);
  EXPECT_EQ(config_of(run).profiles, (std::vector<Profile>{parse_profile("fp16"), resolved}));
  EXPECT_EQ(config_of(run).model, "fake");
}

TEST(Resume, RefusesAnotherModelTokenizerOrArithmetic) {
  const Interrupted interrupted;
  const Store store(interrupted.path, Store::Mode::read_only);
  const RunRecord run = store.runs().front();
  const Suite suite = suite_from_json(run.suite_json);
  const EngineInfo same = run_script().info;
  EXPECT_NO_THROW(check_same(run, suite, same));
  EngineInfo other = same;
  other.model_hash = "another";
  EXPECT_THAT(error_of([&] { check_same(run, suite, other); }).what(), HasSubstr("the model"));
  other = same;
  other.tokenizer = nullptr;
  EXPECT_THAT(error_of([&] { check_same(run, suite, other); }).what(), HasSubstr("the tokenizer"));
  other = same;
  other.compute = "bfloat16";
  EXPECT_THAT(error_of([&] { check_same(run, suite, other); }).what(), HasSubstr("the arithmetic"));
  RunRecord older = run;
  const std::string version = "\"niah\":" + std::to_string(task_named("niah").version);
  older.config_json.replace(older.config_json.find(version), version.size(), "\"niah\":999");
  EXPECT_THAT(error_of([&] { check_same(older, suite, same); }).what(), HasSubstr("the task versions"));
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
