#include "reports/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "reports/json.h"
#include "reports/text.h"
#include "tests/reports/sample_data.h"

namespace kveval {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_data::add_cell;
using testing_data::make_arm;
using testing_data::make_run;

struct Case {
  RunRecord run = make_run("run-a");
  std::vector<ArmData> arms{make_arm(run, 1, "fp16", true), make_arm(run, 2, "e4m3")};
  Case() {
    add_cell(arms[0], 8192, {"RRRR", "RRRR", "RRRR", "RRRR", "RRRR", "RRRR"});
    add_cell(arms[1], 8192, {"WRRR", "WRRR", "WRRR", "WWRR", "WRRR", "WRRE"});
    add_cell(arms[0], 32768, {"RRRR", "RRRR"});
    add_cell(arms[1], 32768, {"RRRR", "RRRR"});
  }
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Terminal, Comparison) {
  const Case data;
  const std::string text = render_comparison(compare_run(data.arms)[0], {});
  const std::vector<std::string> lines = lines_of(text);
  ASSERT_GE(lines.size(), 6u);
  EXPECT_EQ(lines[0], "e4m3 against fp16");
  // 6 of 6 haystacks lose: p = 1/64, times 2 cells below 0.05.
  EXPECT_EQ(lines[2],
            "8k      23  100.0% [85.7, 100.0]   69.6% [49.1, 84.4]        7      0  0.0156*  0.250  0.859   "
            "–         –");
  EXPECT_THAT(lines[4], testing::StartsWith("all     31"));
  EXPECT_THAT(text, HasSubstr("* more losses than gains, p < 0.05"));
  EXPECT_THAT(text, HasSubstr("e4m3: 1 pair lost to errors, not scored"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(Terminal, RowsAlignAndColourChangesNoCharacter) {
  const Case data;
  const Comparison comparison = compare_run(data.arms)[0];
  const std::string plain = render_comparison(comparison, {});
  const std::vector<std::string> lines = lines_of(plain);
  for (size_t i = 2; i <= 4; ++i) EXPECT_EQ(display_width(lines[i]), display_width(lines[1])) << lines[i];
  std::string colour = render_comparison(comparison, {true, 0.05});
  EXPECT_THAT(colour, HasSubstr("\x1b[1;31m"));
  for (size_t at = colour.find('\x1b'); at != std::string::npos; at = colour.find('\x1b')) {
    colour.erase(at, colour.find('m', at) - at + 1);
  }
  EXPECT_EQ(colour, plain);
}

TEST(Terminal, AlphaMovesTheMark) {
  const Case data;
  const Comparison comparison = compare_run(data.arms)[0];
  EXPECT_THAT(render_comparison(comparison, {false, 0.01}), Not(HasSubstr("*")));
}

TEST(Terminal, OneLine) {
  const Case data;
  EXPECT_EQ(render_line(compare_run(data.arms)[0]),
            "e4m3 against fp16: 7 losses, 0 gains in 31 pairs, p 0.0156, 1 pair lost to errors\n");
}

TEST(Terminal, TwoRunsAreNamed) {
  const Case data;
  std::vector<ArmData> after = data.arms;
  for (ArmData& arm : after) arm.run.id = "run-b";
  EXPECT_THAT(render_line(compare_runs(data.arms, after)[0]),
              HasSubstr("fp16 of run run-b against fp16 of run run-a: 0 losses"));
}

TEST(Terminal, FlipsAreSafeToPrint) {
  Case data;
  data.arms[1].samples[0].sample.output = "\x1b[2J" + std::string(500, 'x') + "\n\a";
  data.arms[1].samples[4].sample.output = "1\n2\xff";
  const std::string text = render_flips(compare_run(data.arms)[0], {});
  EXPECT_THAT(text, HasSubstr("LOSS  niah 8k haystack 0 question 0 depth 0.12  first token apart 1  "
                              "niah-8192-0-0  kveval show run-a:1\n"));
  EXPECT_THAT(text, HasSubstr("  expected  10000\n  fp16      10000\n  e4m3      [2Jxxx"));
  EXPECT_THAT(text, HasSubstr("x…\n"));
  EXPECT_THAT(text, HasSubstr("  e4m3      1↵2\xEF\xBF\xBD\n"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  for (const std::string& line : lines_of(text)) EXPECT_LT(display_width(line), 200u);
}

TEST(Terminal, RunSummary) {
  const Case data;
  const std::string text = render_run_summary(data.run, data.arms, compare_run(data.arms), {});
  EXPECT_THAT(text, HasSubstr("\n8k  24 questions on 6 haystacks\n"));
  EXPECT_THAT(text, HasSubstr("\n32k  8 questions on 2 haystacks\n"));
  EXPECT_THAT(text, HasSubstr("\nall  32 questions on 8 haystacks\n"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "e4m3      69.6% [49.1, 84.4]          7      0  0.0156*  0.859   –           2048      50%"));
  EXPECT_THAT(text, HasSubstr("fp16     100.0% [86.2, 100.0]  baseline"));
}

TEST(Terminal, RunSummaryOfAnEmptyRun) {
  RunRecord run = make_run("run-a");
  const std::vector<ArmData> arms{make_arm(run, 1, "fp16", true)};
  EXPECT_EQ(render_run_summary(run, arms, {}, {}), "run run-a  niah  phantom:kappa=80\n");
}

TEST(Json, ParsesAndCarriesTheNumbers) {
  Case data;
  data.arms[1].samples[0].sample.output = "\xff\"\n";
  const nlohmann::json json = nlohmann::json::parse(to_json(compare_run(data.arms), 0.05));
  EXPECT_EQ(json.at("schema"), "kveval.compare/1");
  const auto& comparison = json.at("comparisons").at(0);
  EXPECT_EQ(comparison.at("base").at("arm"), "fp16");
  EXPECT_EQ(comparison.at("pooled").at("losses"), 7);
  EXPECT_EQ(comparison.at("pooled").at("lost_pairs"), 1);
  EXPECT_EQ(comparison.at("pooled").at("p"), 1.0 / 64);
  EXPECT_EQ(comparison.at("cells").size(), 2u);
  EXPECT_EQ(comparison.at("cells").at(0).at("length"), 8192);
  EXPECT_TRUE(comparison.at("cells").at(0).at("kl").is_null());
  EXPECT_EQ(comparison.at("flips").size(), 7u);
  EXPECT_EQ(comparison.at("flips").at(0).at("flip"), "loss");
}

TEST(Text, Printable) {
  EXPECT_EQ(printable("plain", 10), "plain");
  EXPECT_EQ(printable("tab\there\nthere", 99), "tab here↵there");
  EXPECT_EQ(printable("exactly10!", 10), "exactly10!");
  EXPECT_EQ(printable("eleven-char", 10), "eleven-ch…");
  EXPECT_EQ(printable("äöüß", 3), "äö…");
  EXPECT_EQ(printable("\x1b[31mred\x1b[0m\x7f", 99), "[31mred[0m");
  EXPECT_EQ(printable("a\u202Eb\u2066c\u200Bd\uFEFF\u009B", 99), "abcd");
  // Overlong, surrogate, cut short, stray: one U+FFFD for each byte.
  EXPECT_EQ(printable("\xC0\xAF", 99), "\uFFFD\uFFFD");
  EXPECT_EQ(printable("\xED\xA0\x80", 99), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(printable("\xE2\x82", 99), "\uFFFD\uFFFD");
  EXPECT_EQ(printable("\xF5\x80\x80\x80", 99), "\uFFFD\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(printable("\xF0\x9F\x98\x80", 99), "\xF0\x9F\x98\x80");
  EXPECT_EQ(printable("", 0), "");
}

TEST(Text, Numbers) {
  EXPECT_EQ(length_label(8192), "8k");
  EXPECT_EQ(length_label(131072), "128k");
  EXPECT_EQ(length_label(1048576), "1m");
  EXPECT_EQ(length_label(5000), "5000");
  EXPECT_EQ(percent(0.925), "92.5%");
  EXPECT_EQ(p_text(0.03125), "0.0312");
  EXPECT_EQ(p_text(1), "1.0000");
  EXPECT_EQ(p_text(9e-5), "<0.0001");
  EXPECT_EQ(grouped(0), "0");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
  EXPECT_EQ(counted(1, "loss"), "1 loss");
  EXPECT_EQ(counted(2, "loss"), "2 losses");
  EXPECT_EQ(counted(1200, "pair"), "1,200 pairs");
  EXPECT_EQ(small_text(0.0), "0");
  EXPECT_EQ(small_text(3.14e-7), "3.1e-07");
  EXPECT_EQ(small_text(0.00213), "0.00213");
  EXPECT_EQ(small_text(2.5), "2.500");
  EXPECT_EQ(small_text(512.5), "512.5");
  EXPECT_EQ(utc_text(0), "1970-01-01 00:00:00 UTC");
  EXPECT_EQ(utc_text(1795977753000), "2026-11-29 18:42:33 UTC");
  EXPECT_EQ(utc_text(951782400000), "2000-02-29 00:00:00 UTC");
  EXPECT_EQ(utc_text(-1), "unknown");
}

}  // namespace
}  // namespace kveval
