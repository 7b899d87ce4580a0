// kveval bench from outside, and what a run makes of its figures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <nlohmann/json.hpp>
#include <thread>

#include "harness/commands/bench_report.h"
#include "harness/store.h"
#include "tests/harness/fixtures.h"
#include "tests/harness/program.h"

namespace kveval {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::kveval;
using ::testing::Not;
using testing::Outcome;
using testing::Program;
using testing::TempFolder;
using testing::with;

const std::vector<std::string> kSmallBench = {"bench",    "--lengths", "64,200",   "--profiles", "int8,fp16",
                                              "--decode", "2",         "--rounds", "2"};

double as_double(const nlohmann::json& row, const char* name) { return row.at(name).get<double>(); }

TEST(Bench, MeasuresEveryProfileAtEveryLengthBesideTheCeilings) {
  const TempFolder folder;
  const Outcome bench = kveval(folder, with(kSmallBench, {"--json", "-q"}));
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_EQ(bench.err, "");
  const nlohmann::json json = nlohmann::json::parse(bench.out);
  const double flops = as_double(json["ceiling"], "flops_per_second"),
               bytes = as_double(json["ceiling"], "bytes_per_second");
  EXPECT_GT(flops, 1e6);
  EXPECT_GT(bytes, 1e6);
  ASSERT_EQ(json["results"].size(), 4u);
  for (const nlohmann::json& row : json["results"]) {
    EXPECT_EQ(row["cache_bytes_per_token"], row["profile"] == "fp16" ? 1024 : 520);
    for (const char* times : {"prefill_seconds", "decode_seconds_per_token", "user_cpu_seconds"})
      EXPECT_EQ(row[times].size(), 2u);
    const double prefill = std::max(row["prefill_seconds"][0], row["prefill_seconds"][1]),
                 decode = std::max(row["decode_seconds_per_token"][0], row["decode_seconds_per_token"][1]);
    EXPECT_NEAR(as_double(row, "prefill_of_ceiling"), as_double(row, "prefill_flops") / prefill / flops,
                1e-9);
    EXPECT_NEAR(
        as_double(row, "decode_of_ceiling"),
        std::max(as_double(row, "decode_bytes") / bytes, as_double(row, "decode_flops") / flops) / decode,
        1e-9);
    EXPECT_EQ(row["questions"], 0);
    EXPECT_FALSE(row.contains("questions_seconds"));
  }
  EXPECT_EQ(json["results"][3]["tokens"], 200);
  // fp16 comes first. Linear work but for a window of 16 keys in the phantom's first layer: 199 tokens to 63.
  EXPECT_NEAR(as_double(json["results"][3], "prefill_flops") / as_double(json["results"][1], "prefill_flops"),
              199.0 / 63, 0.01);
  EXPECT_GT(as_double(json["results"][2], "decode_bytes"), as_double(json["results"][0], "decode_bytes"));
  const Outcome full = kveval(folder, {"bench", "--lengths", "10M"});
  EXPECT_EQ(full.code, 2);
  EXPECT_THAT(full.err, AllOf(HasSubstr("do not fit"), HasSubstr("choose other --lengths")));
}

TEST(Bench, ATableForPeople) {
  const TempFolder folder;
  const Outcome bench = kveval(folder, with(kSmallBench, {"--questions", "3"}));
  ASSERT_EQ(bench.code, 0) << bench.err;
  EXPECT_THAT(bench.out, AllOf(HasSubstr("GFLOP/s"), HasSubstr("GB/s"), HasSubstr("of ceiling"),
                               HasSubstr("3 questions s"), HasSubstr("cost/model"), HasSubstr("int8")));
  EXPECT_THAT(kveval(folder, kSmallBench).out, Not(HasSubstr("questions")));
}

TEST(Bench, QuestionsOnOneHaystackBesideTheirFlops) {
  const TempFolder folder;
  const Outcome bench = kveval(folder, with(kSmallBench, {"--json", "-q", "--questions", "3"}));
  ASSERT_EQ(bench.code, 0) << bench.err;
  for (const nlohmann::json& row : nlohmann::json::parse(bench.out)["results"]) {
    EXPECT_EQ(row["questions"], 3);
    ASSERT_EQ(row["questions_seconds"].size(), 2u);
    ASSERT_EQ(row["questions_prefix_seconds"].size(), 2u);
    double largest = 0;
    for (const int round : {0, 1}) {
      const double all = row["questions_seconds"][round], prefix = row["questions_prefix_seconds"][round];
      EXPECT_GT(all, prefix);
      largest = std::max(largest, all / prefix);
    }
    EXPECT_GT(as_double(row, "questions_flops"), as_double(row, "prefill_flops"));
    EXPECT_NEAR(as_double(row, "questions_of_model"),
                largest / (as_double(row, "questions_flops") / as_double(row, "prefill_flops")), 1e-9);
  }
}

TEST(Bench, AtTheRoofWhicheverItIs) {
  Measurement m;
  m.prefill_flops = 600;
  m.prefill_seconds = {3, 1, 2};
  m.decode_flops = 10;
  m.decode_bytes = 50;
  m.decode_seconds = {4};
  EXPECT_DOUBLE_EQ(prefill_of_ceiling(m, {1000, 100}), 0.3);
  EXPECT_DOUBLE_EQ(decode_of_ceiling(m, {1000, 100}), 50.0 / 100 / 4);
  EXPECT_DOUBLE_EQ(decode_of_ceiling(m, {5, 100}), 10.0 / 5 / 4);
  m.questions_flops = 900;
  m.questions_seconds = {4, 9};
  m.questions_prefix_seconds = {2, 3};
  EXPECT_DOUBLE_EQ(questions_of_model(m), 3 / 1.5);
}

// ---- figures that estimates are made of

TEST(Bench, RunsEstimateFromItsFigures) {
  const TempFolder folder;
  const std::vector<std::string> plan = {"run", "--dry-run", "--lengths", "1k", "--haystacks", "1"};
  EXPECT_THAT(kveval(folder, plan).out,
              HasSubstr("\ntime     is a guess: 'kveval bench --model phantom:kappa=80,beta=160,rho=0,seed=1,"
                        "outlier=1' measures this machine\nestimate 1 group"));
  ASSERT_EQ(kveval(folder, kSmallBench).code, 0);
  EXPECT_THAT(kveval(folder, plan).out, HasSubstr("\ntime     from 'kveval bench' of 20"));
  EXPECT_EQ(kveval(folder, {"list"}).code, 0);
  // Of another machine, as it were.
  EXPECT_THAT(kveval(folder, with(plan, {"--threads", "3"})).out, HasSubstr("is a guess"));
  EXPECT_THAT(kveval(folder, with(plan, {"--model", "phantom:seed=2"})).out, HasSubstr("is a guess"));
  EXPECT_THAT(kveval(folder, with(plan, {"--db", "other.db"})).out, HasSubstr("is a guess"));
  EXPECT_FALSE(fs::exists(folder / "other.db"));
  std::ofstream(folder / "text.db") << std::string(4096, 'x');
  const Outcome unreadable = kveval(folder, with(plan, {"--db", "text.db"}));
  EXPECT_EQ(unreadable.code, 0);
  EXPECT_THAT(unreadable.out, HasSubstr("is a guess"));

  const Outcome run = kveval(folder, {"run", "--lengths", "1k", "--haystacks", "1"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.err, HasSubstr("\ntime     from 'kveval bench' of 20"));
}

TEST(Bench, ADatabaseThatCannotBeWrittenIsRefusedAtOnce) {
  const TempFolder folder;
  std::ofstream(folder / "text.db") << std::string(4096, 'x');
  const Outcome bench = kveval(folder, with(kSmallBench, {"--db", "text.db"}));
  EXPECT_EQ(bench.code, 2);
  EXPECT_EQ(bench.out, "");
  EXPECT_THAT(bench.err, HasSubstr("not a SQLite database"));
  EXPECT_THAT(kveval(folder, with(kSmallBench, {"--db", "nosuch/k.db"})).err,
              HasSubstr("there is no folder"));
}

TEST(SignalsSlow, AnInterruptedBenchKeepsNothing) {
  const TempFolder folder;
  Program program(folder, {"bench", "--lengths", "32k", "--rounds", "1000"});
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // loaded and measuring, or it ends as simply
  program.signal(SIGINT);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("of 4000 measurements"));
  EXPECT_THAT(kveval(folder, {"run", "--dry-run", "--lengths", "1k"}).out, HasSubstr("is a guess"));
}

}  // namespace
}  // namespace kveval
