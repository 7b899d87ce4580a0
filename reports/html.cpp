#include "reports/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "reports/html/sections.h"
#include "reports/sha256.h"
#include "reports/text.h"

namespace kveval {
namespace html {

std::string escape(std::string_view text, size_t limit) {
  std::string out;
  for (const char c : printable(text, limit)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string scrolling(std::string_view label, std::string_view table) {
  return fmt::format("<div class=\"scroll\" role=\"region\" aria-label=\"{}\" tabindex=\"0\">{}</div>\n",
                     label, table);
}

}  // namespace html

namespace {

std::string lede(const RunRecord& run, std::span<const ArmData> arms) {
  std::set<int> lengths;
  size_t questions = 0;
  for (const ArmData& data : arms) {
    questions = std::max(questions, data.samples.size());
    for (const SampleView& view : data.samples) lengths.insert(view.length);
  }
  std::string names;
  for (const int length : lengths) names += (names.empty() ? "" : ", ") + length_label(length);
  return fmt::format("<p>{} on the same {}{}. Only the cache differs. {}.</p>\n",
                     counted(arms.size(), "cache profile"), counted(questions, "question"),
                     names.empty() ? "" : " at prompt lengths of " + names, utc_text(run.started_ms));
}

}  // namespace

std::string render_html(const RunRecord& run, std::span<const ArmData> arms,
                        std::span<const Comparison> comparisons) {
  const std::string style = html::style_sheet();
  const std::string title =
      fmt::format("{} on {}", html::escape(run.suite, 80), html::escape(run.model, 160));

  std::string page = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  // The style sheet by its hash and nothing else: no script, image, font or request can be smuggled in by an
  // answer.
  page += fmt::format(
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'sha256-{}'; "
      "base-uri 'none'; form-action 'none'\">\n",
      base64(sha256(style)));
  page += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  page += fmt::format("<title>{} · kveval</title>\n<style>{}</style>\n</head>\n", title, style);

  page +=
      "<body>\n<a class=\"skip\" href=\"#changed\">Skip to the results</a>\n<div class=\"page\">\n<header>\n";
  page += fmt::format("<p class=\"kicker\">kveval report</p>\n<h1>{}</h1>\n{}", title, lede(run, arms));
  if (run.status != RunStatus::complete) {
    page += fmt::format(
        "<p class=\"notice\">This run is {}: its results are those of the haystacks finished so far. "
        "Continue it with <code>kveval resume {}</code>.</p>\n",
        name_of(run.status), html::escape(run.id));
  }
  page +=
      "<nav aria-label=\"Sections\"><ul><li><a href=\"#changed\">What changed</a></li>"
      "<li><a href=\"#lengths\">By length</a></li><li><a href=\"#maps\">Heat maps</a></li>"
      "<li><a href=\"#flips\">Flipped answers</a></li><li><a href=\"#cache\">Cache diagnostics</a></li>"
      "<li><a href=\"#provenance\">Provenance</a></li></ul></nav>\n</header>\n<main>\n";

  const auto section = [&](const char* id, const char* heading, const std::string& content) {
    page += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", id, heading, content);
  };
  section("changed", "What changed", html::headline(arms, comparisons));
  section("lengths", "By length", html::summary(arms, comparisons));
  section("maps", "Heat maps", html::heat_maps(arms, comparisons));
  section("flips", "Flipped answers", html::flips(run, comparisons));
  section("cache", "Cache diagnostics", html::diagnostics(arms));
  section("provenance", "Provenance", html::provenance(run, arms));
  return page + "</main>\n</div>\n</body>\n</html>\n";
}

}  // namespace kveval
