#include "reports/html.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reports/html/sections.h"
#include "reports/palette.h"
#include "reports/sha256.h"
#include "tests/reports/sample_data.h"

namespace kveval {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_data::add_cell;
using testing_data::make_arm;
using testing_data::make_run;

size_t count_of(std::string_view text, std::string_view needle) {
  size_t count = 0;
  for (size_t at = text.find(needle); at != std::string_view::npos; at = text.find(needle, at + 1)) ++count;
  return count;
}

std::string between(const std::string& text, const std::string& from, const std::string& to) {
  const size_t start = text.find(from);
  if (start == std::string::npos) return "";
  const size_t end = text.find(to, start + from.size());
  return text.substr(start + from.size(), end - start - from.size());
}

// Every tag closed in order, every attribute quoted, no stray '<' or '&'. Empty when all is well.
std::string markup_fault(std::string_view html) {
  const std::set<std::string, std::less<>> empty_elements{"meta", "line", "circle"};
  std::vector<std::string> open;
  size_t at = 0;
  const auto here = [&] { return " at '" + std::string(html.substr(at, 60)) + "'"; };
  while (at < html.size()) {
    if (html[at] == '&') {
      const size_t end = html.find(';', at);
      if (end == std::string_view::npos || end - at > 6) return "bare &" + here();
    }
    if (html[at] == '>') return "bare >" + here();
    if (html[at] != '<') {
      ++at;
      continue;
    }
    size_t end = at + 1;
    bool quoted = false;
    for (; end < html.size() && (quoted || html[end] != '>'); ++end) {
      if (html[end] == '"') quoted = !quoted;
      if (html[end] == '<') return "< inside a tag" + here();
    }
    if (end == html.size()) return "tag without end" + here();
    std::string_view tag = html.substr(at + 1, end - at - 1);
    if (tag.starts_with("!DOCTYPE")) {
      at = end + 1;
      continue;
    }
    const bool closing = tag.starts_with("/");
    if (closing) tag.remove_prefix(1);
    const std::string name(tag.substr(0, tag.find_first_of(" /\n")));
    if (closing) {
      if (open.empty() || open.back() != name) {
        return "</" + name + "> closes " + (open.empty() ? "nothing" : open.back()) + here();
      }
      open.pop_back();
    } else if (!tag.ends_with("/") && !empty_elements.contains(name)) {
      open.push_back(name);
      if (name == "style") {  // its content is not markup
        end = html.find("</style>", end) - 1;
      }
    }
    at = end + 1;
  }
  return open.empty() ? "" : "never closed: " + open.back();
}

std::vector<ArmData> make_arms(const RunRecord& run) {
  std::vector<ArmData> arms{make_arm(run, 1, "fp16", true), make_arm(run, 2, "int8"),
                            make_arm(run, 3, "e4m3")};
  add_cell(arms[0], 8192, {"RRRR", "RRRR", "RRRR", "RRRR", "RRRR"});
  add_cell(arms[1], 8192, {"RRRR", "RRRR", "RRRR", "RRRR", "RRRE"});
  add_cell(arms[2], 8192, {"WRRR", "WRRR", "WRRR", "WRRR", "WRRR"});
  add_cell(arms[0], 32768, {"RRWR", "RRRR"});
  add_cell(arms[1], 32768, {"RRRR", "RRRR"});
  add_cell(arms[2], 32768, {"WRRR", "WWRR"});
  for (ArmData& data : arms) {
    for (const bool keys : {true, false}) {
      DiagnosticRecord record;
      record.arm_id = data.arm.id;
      record.layer = 1;
      record.kv_head = 3;
      record.keys = keys;
      record.elements = 1000;
      record.clipped = keys ? 5 : 0;
      record.flushed = keys ? 0 : 20;
      record.absolute_max = keys ? 512.5 : 1.5;
      record.energy = 100;
      record.error_energy = keys ? 0.01 : 1;  // 1 % and 10 %
      data.diagnostics.push_back(record);
    }
  }
  return arms;
}

std::string render(const RunRecord& run, const std::vector<ArmData>& arms) {
  return render_html(run, arms, arms.size() > 1 ? compare_run(arms) : std::vector<Comparison>{});
}

TEST(Html, SamePageToTheByte) {
  const RunRecord run = make_run("run-a");
  EXPECT_EQ(render(run, make_arms(run)), render(run, make_arms(run)));
}

TEST(Html, WellFormedAndSelfContained) {
  const RunRecord run = make_run("run-a");
  const std::string page = render(run, make_arms(run));
  EXPECT_EQ(markup_fault(page), "");
  for (const char* outside : {"http://", "https://", "<script", "<link", "<img", "<iframe", "url(", "@import",
                              " style=", " onclick", "javascript:"}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
  EXPECT_LT(page.size(), 200'000u);
}

TEST(Html, PolicyAllowsExactlyTheStyleSheet) {
  const RunRecord run = make_run("run-a");
  const std::string page = render(run, make_arms(run));
  const std::string style = between(page, "<style>", "</style>");
  ASSERT_FALSE(style.empty());
  EXPECT_THAT(page, HasSubstr("default-src 'none'; style-src 'sha256-" + base64(sha256(style)) +
                              "'; base-uri 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("unsafe-inline")));
}

TEST(Html, EveryColourClassUsedIsDefined) {
  const RunRecord run = make_run("run-a");
  const std::string page = render(run, make_arms(run));
  const std::string style = html::style_sheet();
  size_t cells = 0;
  for (size_t at = page.find("<td class=\""); at != std::string::npos;
       at = page.find("<td class=\"", at + 1)) {
    const std::string name = page.substr(at + 11, page.find('"', at + 11) - at - 11);
    if (name[0] != 'c' && !(name[0] == 'n' && name != "none")) continue;
    EXPECT_THAT(style, HasSubstr("." + name + "{background:"));
    ++cells;
  }
  // 3 accuracy maps and 2 of change, 4 depths x 2 lengths each, and two legends of 5.
  EXPECT_EQ(cells, 5u * 8 + 10);
  EXPECT_EQ(html::accuracy_class(0, 10), "c0");
  EXPECT_EQ(html::accuracy_class(1, 3), "c33");
  EXPECT_EQ(html::accuracy_class(2, 3), "c67");
  EXPECT_EQ(html::accuracy_class(10, 10), "c100");
}

TEST(Html, MapsShowWhatWasCounted) {
  const RunRecord run = make_run("run-a");
  const std::string page = render(run, make_arms(run));
  // e4m3 loses all five at the first depth of 8k, and both at 32k.
  const std::string map = between(page, "aria-label=\"Right answers, e4m3\"", "</table>");
  EXPECT_THAT(map, HasSubstr("<th scope=\"row\">12 %</th><td class=\"c0\""));
  EXPECT_THAT(map, HasSubstr(">0/5</td>"));
  EXPECT_THAT(map, HasSubstr(">0/2</td>"));
  EXPECT_THAT(map, HasSubstr(">1/2</td>"));
  const std::string change = between(page, "aria-label=\"Losses and gains, e4m3 against fp16\"", "</table>");
  EXPECT_THAT(change, HasSubstr("class=\"n-100\" title=\"5 losses, 0 gains in 5 pairs\">−5</td>"));
  EXPECT_THAT(change, HasSubstr("title=\"0 losses, 1 gain in 2 pairs\">+1</td>"));
  // An error is shown beside what was scored.
  const std::string errors = between(page, "aria-label=\"Right answers, int8\"", "</table>");
  EXPECT_THAT(errors, HasSubstr(">4/4<small>1 error</small></td>"));
}

TEST(Html, UntestedCellsAreNotZero) {
  const RunRecord run = make_run("run-a");
  std::vector<ArmData> arms = make_arms(run);
  for (ArmData& data : arms) {
    std::erase_if(data.samples, [](const SampleView& v) { return v.length == 32768 && v.item.stratum == 0; });
  }
  const std::string page = render(run, arms);
  EXPECT_EQ(count_of(page, "not asked</td>"), 5u);
  EXPECT_EQ(markup_fault(page), "");
}

TEST(Html, FlipsLossesFirstWithTheCommand) {
  const RunRecord run = make_run("run-a");
  const std::string page = render(run, make_arms(run));
  const std::string flips = between(page, "<h3>e4m3: 8 losses, 1 gain</h3>", "</section>");
  EXPECT_EQ(count_of(flips, "▼ loss"), 8u);
  EXPECT_EQ(count_of(flips, "▲ gain"), 1u);
  EXPECT_LT(flips.rfind("▼ loss"), flips.find("▲ gain"));
  EXPECT_THAT(flips, HasSubstr("kveval show run-a:1<"));
  EXPECT_THAT(flips, HasSubstr("<mark>99999</mark>"));
}

TEST(Html, DiagnosticsKeysAndValuesApart) {
  const RunRecord run = make_run("run-a");
  const std::string page = render(run, make_arms(run));
  EXPECT_THAT(page,
              HasSubstr("<tr><td>1</td><td>3</td><td>512.5</td><td>0.500 %</td><td>0</td><td>1.000 %</td>"
                        "<td class=\"edge\">1.500</td><td>0</td><td>2.000 %</td><td>10.0 %</td></tr>"));
}

TEST(Html, NamesAndAnswersAreTextNeverMarkup) {
  const std::string attack = "</script></style><img src=x onerror=\"alert('1')\">&lt;";
  RunRecord run = make_run("run-a");
  run.model = run.suite = run.host = run.id = run.argv_json = run.decoding_json = run.suite_json = attack;
  run.model_hash = run.tokenizer_hash = run.template_hash = run.suite_hash = run.config_json = attack;
  run.git_sha = run.simd = run.compute = run.cache_mode = run.tool_version = attack;
  run.status = RunStatus::interrupted;
  std::vector<ArmData> arms = make_arms(run);
  int n = 0;
  for (ArmData& data : arms) {
    data.arm.name = attack + std::to_string(n++);
    data.arm.profile_json = data.arm.profile_hash = data.arm.k_format = data.arm.v_format = attack;
    for (SampleView& view : data.samples) {
      view.task = view.item.expected = view.item.question = view.sample.error = attack;
      view.item.item_key += attack;
      view.sample.output = attack + "\x1b[31m\xff\xfe" + view.sample.output;
    }
  }
  const std::string page = render(run, arms);
  EXPECT_EQ(markup_fault(page), "");
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, Not(HasSubstr("</script")));
  EXPECT_EQ(count_of(page, "</style>"), 1u);
  EXPECT_THAT(page, Not(HasSubstr("\x1b")));
  EXPECT_THAT(page, Not(HasSubstr("\xff")));
  EXPECT_THAT(
      page,
      HasSubstr("&lt;/script&gt;&lt;/style&gt;&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;"));
}

TEST(Html, StaysSmallWhateverTheAnswers) {
  const RunRecord run = make_run("run-a");
  std::vector<ArmData> arms{make_arm(run, 1, "fp16", true)};
  for (int i = 0; i < 6; ++i) arms.push_back(make_arm(run, i + 2, "arm" + std::to_string(i)));
  for (ArmData& data : arms) {
    for (int h = 0; h < 40; ++h) {
      add_cell(data, 8192 << (h / 10), {data.arm.baseline ? "RRRRRRRR" : "WWWWWWWW"});
      for (size_t i = data.samples.size() - 8; i < data.samples.size(); ++i) {
        data.samples[i].item.item_key += std::to_string(h);
        data.samples[i].haystack = h;
        data.samples[i].sample.output = std::string(20000, '"');  // each escapes to six bytes
      }
    }
    for (int row = 0; row < 2 * 80 * 8; ++row) {
      DiagnosticRecord record;
      record.layer = row / 16;
      record.kv_head = row / 2 % 8;
      record.keys = row % 2 == 0;
      record.elements = 1 << 20;
      record.energy = 1;
      record.error_energy = 0.5;
      data.diagnostics.push_back(record);
    }
  }
  const std::string page = render(run, arms);
  EXPECT_LT(page.size(), 2'000'000u);
  EXPECT_EQ(markup_fault(page), "");
  EXPECT_THAT(page, HasSubstr("kveval compare run-a --candidate arm5 --flips"));
  EXPECT_THAT(page, HasSubstr("<td>79</td><td>all</td>"));
}

TEST(Html, ARunWithNothingToCompareStillHasAPage) {
  const RunRecord run = make_run("run-a");
  std::vector<ArmData> arms = make_arms(run);
  arms.resize(1);
  const std::string page = render(run, arms);
  EXPECT_EQ(markup_fault(page), "");
  EXPECT_THAT(page, HasSubstr("nothing to compare"));
  arms[0].samples.clear();
  arms[0].diagnostics.clear();
  EXPECT_EQ(markup_fault(render(run, arms)), "");
}

TEST(Html, FloorCellsAreCalledOut) {
  const RunRecord run = make_run("run-a");
  std::vector<ArmData> arms{make_arm(run, 1, "fp16", true), make_arm(run, 2, "e4m3")};
  add_cell(arms[0], 8192, {"RWWW", "WWWW"});
  add_cell(arms[1], 8192, {"WWWW", "WWWW"});
  EXPECT_THAT(render(run, arms), HasSubstr("no evidence that a profile is safe"));
  arms[0].samples[1].sample.correct = true;
  EXPECT_THAT(render(run, arms), Not(HasSubstr("no evidence that a profile is safe")));
}

TEST(Sha256, PublishedVectors) {
  const auto hex = [](std::string_view text) {
    std::string out;
    for (const uint8_t byte : sha256(text)) out += fmt::format("{:02x}", byte);
    return out;
  };
  // FIPS 180-4 examples.
  EXPECT_EQ(hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Base64, PublishedVectors) {
  const auto encode = [](std::string_view text) {
    return base64({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  // RFC 4648, section 10.
  EXPECT_EQ(encode(""), "");
  EXPECT_EQ(encode("f"), "Zg==");
  EXPECT_EQ(encode("fo"), "Zm8=");
  EXPECT_EQ(encode("foo"), "Zm9v");
  EXPECT_EQ(encode("foobar"), "Zm9vYmFy");
}

double luminance(Rgb c) {
  const auto linear = [](double v) { return v <= 0.04045 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4); };
  return 0.2126 * linear(c.r / 255.0) + 0.7152 * linear(c.g / 255.0) + 0.0722 * linear(c.b / 255.0);
}

TEST(Palette, TextReadsOnEveryColour) {
  for (int percent = -100; percent <= 100; ++percent) {
    for (const Rgb colour : {cividis(percent), difference_colour(percent)}) {
      const double background = luminance(colour) + 0.05;
      const double text = luminance(text_on(colour)) + 0.05;
      const double ratio = std::max(background, text) / std::min(background, text);
      EXPECT_GE(ratio, 4.5) << percent;
      EXPECT_NEAR(contrast(colour, text_on(colour)), ratio, 1e-9);
    }
  }
  EXPECT_NEAR(contrast(kBlack, kWhite), 21, 1e-9);
}

TEST(Palette, OrderedWhenPrintedGrey) {
  for (int percent = 1; percent <= 100; ++percent) {
    EXPECT_GE(luminance(cividis(percent)), luminance(cividis(percent - 1)) - 1e-3) << percent;
  }
  EXPECT_GT(luminance(cividis(50)), 2 * luminance(cividis(0)));
  EXPECT_GT(luminance(cividis(100)), 2 * luminance(cividis(50)));
}

TEST(Palette, EndsAndMiddle) {
  EXPECT_EQ(css(cividis(0)), "#00204d");
  EXPECT_EQ(css(cividis(100)), "#ffea46");
  EXPECT_EQ(css(difference_colour(-100)), "#d55e00");
  EXPECT_EQ(css(difference_colour(0)), "#f7f7f7");
  EXPECT_EQ(css(difference_colour(100)), "#0072b2");
  EXPECT_EQ(cividis(-5), cividis(0));
  EXPECT_EQ(cividis(105), cividis(100));
}

}  // namespace
}  // namespace kveval
