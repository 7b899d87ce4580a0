#include "harness/commands/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/fake_engine.h"
#include "harness/environment.h"
#include "harness/record.h"
#include "tests/harness/fixtures.h"

namespace kveval {
namespace {

using ::testing::AllOf;
using testing::ByteTokenizer;
using testing::error_of;
using ::testing::HasSubstr;
using testing::TempFolder;

const ByteTokenizer kTokenizer;

// Carries out a run of 20 answers of which the first `errors` are errors.
void run_with_errors(int errors) {
  FakeScript script;
  script.info.model = "fake";
  script.info.compute = "float32";
  script.info.context = 4096;
  script.info.vocabulary = kTokenizer.vocabulary_size();
  script.info.tokenizer = &kTokenizer;
  int asked = 0;
  script.generate = [&](const FakeTurn&) {
    Reply reply;
    reply.stop = Stop::eos;
    if (asked++ < errors) reply.error = Error(ErrorKind::run, "no room");
    return reply;
  };
  FakeEngine engine(script);
  Suite suite = load_suite("niah");
  suite.families.front().lengths = {1024};
  suite.families.front().haystacks = 5;
  suite.families.front().parameters = task_named("niah").resolve_parameters(nlohmann::json{{"needles", 2}});
  const Plan plan =
      make_plan(suite, plain_chat(), plan_arms(parse_profile_list("fp16,e4m3"), engine), engine);

  const TempFolder folder;
  Store store(folder / "k.db", Store::Mode::read_write);
  const RunRecord run = record_of(suite, plan, "fake", "auto", engine.describe(), this_environment({}), 1);
  std::vector<ArmRecord> arms = arm_records(plan);
  store.begin_run(run, arms);
  Context context;
  context.quiet = true;
  ::testing::internal::CaptureStdout();
  try {
    carry_out(store, run.id, arms, plan, engine, context);
  } catch (...) {
    ::testing::internal::GetCapturedStdout();
    throw;
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), run.id + "\n");
}

TEST(Session, ManyErrorsFailTheCommand) {
  EXPECT_NO_THROW(run_with_errors(0));
  EXPECT_NO_THROW(run_with_errors(2));
  const Error error = error_of([] { run_with_errors(3); });
  EXPECT_EQ(error.kind, ErrorKind::run);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("3 of 20 answers"), HasSubstr("fp16: no room")));
}

}  // namespace
}  // namespace kveval
