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
double mean_of_two(const nlohmann::json& two) {
  return (two.at(0).get<double>() + two.at(1).get<double>()) / 2;
}

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
  EXPECT_EQ(json["questions"], 0);
  ASSERT_EQ(json["results"].size(), 4u);
  for (const nlohmann::json& row : json["results"]) {
    EXPECT_EQ(row["cache_bytes_per_token"], row["profile"] == "fp16" ? 1024 : 520);
    for (const char* cpu : {"prefill_user_cpu_seconds", "decode_user_cpu_seconds"}) {
      ASSERT_EQ(row[cpu].size(), 2u);
      for (const double seconds : row[cpu]) EXPECT_GE(seconds, 0);
    }
    const double prefill = mean_of_two(row["prefill_seconds"]),
                 decode = mean_of_two(row["decode_seconds_per_token"]);
    EXPECT_NEAR(as_double(row, "prefill_tokens_per_second") * prefill, as_double(row, "tokens") - 1, 1e-6);
    EXPECT_NEAR(as_double(row, "decode_tokens_per_second") * decode, 1, 1e-9);
    EXPECT_NEAR(as_double(row, "prefill_of_ceiling"), as_double(row, "prefill_flops") / prefill / flops,
                1e-9);
    EXPECT_NEAR(
        as_double(row, "decode_of_ceiling"),
        std::max(as_double(row, "decode_bytes") / bytes, as_double(row, "decode_flops") / flops) / decode,
        1e-9);
    EXPECT_FALSE(row.contains("questions_seconds"));
  }
  EXPECT_EQ(json["results"][3]["tokens"], 200);
  // fp16 comes first. Linear work but for a window of 16 keys in the phantom's first layer: 199 tokens to 63.
  EXPECT_NEAR(as_double(json["results"][3], "prefill_flops") / as_double(json["results"][1], "prefill_flops"),
              199.0 / 63, 0.01);
  EXPECT_GT(as_double(json["results"][2], "decode_bytes"), as_double(json["results"][0], "decode_bytes"));
}

TEST(Bench, RefusesWhatDoesNotFitWithWhatToChange) {
  const TempFolder folder;
  std::ofstream(folder / "one.json") << R"({"ids": [5]})";
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--lengths", "1"}, "at least 2 tokens with --lengths"},
      {{"--tokens", "one.json"}, "at least 2 tokens with --tokens"},
      {{"--lengths", "10M"}, "choose shorter --lengths"},
      {{"--lengths", "2k,262113"}, "the phantom's context=262145 makes room"},
      {{"--lengths", "262100", "--questions", "1"}, "the phantom's context=262147 makes room"},
      // The longest context that a phantom may have.
      {{"--model", "phantom:context=8388608", "--lengths", "8388600"}, "fewer tokens with --decode"},
      {{"--model", "phantom:context=8388608", "--lengths", "8388570", "--questions", "1"},
       "leave --questions out"}};
  for (const auto& [arguments, words] : cases) {
    const Outcome bench = kveval(folder, with({"bench"}, arguments));
    EXPECT_EQ(bench.code, 2) << words;
    EXPECT_THAT(bench.err, HasSubstr(words));
  }
  const std::vector<std::string> full = {
      "bench", "--model", "phantom:context=1024", "--rounds", "1", "--profiles", "int8", "--decode", "2"};
  EXPECT_EQ(kveval(folder, with(full, {"--lengths", "977", "--questions", "1"})).code, 0);
  EXPECT_EQ(kveval(folder, with(full, {"--lengths", "1022"})).code, 0);
}

TEST(Bench, CountsTheBytesOfTheMiddleToken) {
  const TempFolder folder;
  const auto bytes = [&](const char* decode) {
    const Outcome bench = kveval(folder, {"bench", "-q", "--json", "--lengths", "64", "--profiles", "fp16",
                                          "--rounds", "1", "--decode", decode});
    return as_double(nlohmann::json::parse(bench.out)["results"][0], "decode_bytes");
  };
  EXPECT_EQ(bytes("7") - bytes("1"), 3 * 1024);
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
  const nlohmann::json json = nlohmann::json::parse(bench.out);
  EXPECT_EQ(json["questions"], 3);
  for (const nlohmann::json& row : json["results"]) {
    ASSERT_EQ(row["questions_seconds"].size(), 2u);
    ASSERT_EQ(row["questions_prefix_seconds"].size(), 2u);
    double ratios = 0;
    for (const int round : {0, 1}) {
      const double all = row["questions_seconds"][round], prefix = row["questions_prefix_seconds"][round];
      EXPECT_GT(all, prefix);
      ratios += all / prefix;
    }
    EXPECT_GT(as_double(row, "questions_flops"), as_double(row, "prefill_flops"));
    EXPECT_NEAR(as_double(row, "questions_of_model"),
                ratios / 2 / (as_double(row, "questions_flops") / as_double(row, "prefill_flops")), 1e-9);
  }
}

TEST(Bench, TheMedianOfAnEvenNumberIsBetweenTheMiddleTwo) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({7, 1}), 4);
  EXPECT_EQ(median({9, 1, 2}), 2);
  EXPECT_EQ(median({9, 1, 4, 2}), 3);
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
  EXPECT_DOUBLE_EQ(questions_of_model(m), 2.5 / 1.5);
}

// ---- figures that estimates are made of

TEST(Bench, RunsEstimateFromItsFigures) {
  const TempFolder folder;
  const std::vector<std::string> any = {"run", "--dry-run", "--lengths", "1k", "--haystacks", "1"};
  const std::vector<std::string> plan = with(any, {"--threads", "1"});
  EXPECT_THAT(kveval(folder, plan).out,
              HasSubstr("\ntime     is a guess; this measures the machine: kveval bench --model "
                        "phantom:kappa=80,beta=160,rho=0,seed=1,outlier=1 --threads 1\nestimate 1 group"));
  ASSERT_EQ(kveval(folder, with(kSmallBench, {"--threads", "1"})).code, 0);
  EXPECT_THAT(kveval(folder, plan).out,
              AllOf(HasSubstr("\ntime     from 'kveval bench' of 20"), HasSubstr(" UTC\n")));
  EXPECT_EQ(kveval(folder, {"list"}).code, 0);
  // Of another machine, as it were.
  EXPECT_THAT(kveval(folder, with(any, {"--threads", "2"})).out, HasSubstr("is a guess"));
  EXPECT_THAT(kveval(folder, with(plan, {"--model", "phantom:seed=2"})).out, HasSubstr("is a guess"));
  EXPECT_THAT(kveval(folder, with(any, {"--db", "the other's.db"})).out,
              AllOf(HasSubstr("is a guess"), HasSubstr("outlier=1 --db 'the other'\\''s.db'\n")));
  EXPECT_FALSE(fs::exists(folder / "the other's.db"));
  std::ofstream(folder / "text.db") << std::string(4096, 'x');
  const Outcome unreadable = kveval(folder, with(plan, {"--db", "text.db"}));
  EXPECT_EQ(unreadable.code, 0);
  EXPECT_THAT(unreadable.out, HasSubstr("is a guess"));

  const Outcome run = kveval(folder, {"run", "--lengths", "1k", "--haystacks", "1", "--threads", "1"});
  EXPECT_EQ(run.code, 0);
  EXPECT_THAT(run.err, HasSubstr("\ntime     from 'kveval bench' of 20"));
}

TEST(Bench, WhatCannotBeKeptIsShownAllTheSame) {
  const TempFolder folder;
  std::ofstream(folder / "text.db") << std::string(4096, 'x');
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"text.db", "figures are not kept: 'text.db' is not a SQLite database"},
      {"nosuch/k.db", "figures are not kept: cannot create 'nosuch/k.db'"}};
  for (const auto& [db, words] : cases) {
    const Outcome bench = kveval(folder, with(kSmallBench, {"--db", db}));
    EXPECT_EQ(bench.code, 0);
    EXPECT_THAT(bench.out, HasSubstr("GFLOP/s"));
    EXPECT_THAT(bench.err, HasSubstr(words));
  }
}

TEST(Bench, FiguresWithOtherChunksOrPagesAreNotKept) {
  const TempFolder folder;
  for (const char* setting : {"--chunk", "--page"}) {
    const Outcome bench = kveval(folder, with(kSmallBench, {setting, "64"}));
    EXPECT_EQ(bench.code, 0);
    EXPECT_THAT(bench.err, HasSubstr("are not kept"));
    EXPECT_FALSE(fs::exists(folder / "kveval.db"));
  }
}

TEST(SignalsSlow, AnInterruptedBenchKeepsNothing) {
  const TempFolder folder;
  Program program(folder, {"bench", "--lengths", "32k", "--rounds", "1000"});
  // From when its database is there it ends cleanly.
  for (int i = 0; i < 10000 && !fs::exists(folder / "kveval.db"); i++)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  program.signal(SIGINT);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("of 4000 measurements"));
  EXPECT_THAT(kveval(folder, {"run", "--dry-run", "--lengths", "1k"}).out, HasSubstr("is a guess"));
}

}  // namespace
}  // namespace kveval
