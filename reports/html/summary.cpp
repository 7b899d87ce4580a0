#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "reports/html/sections.h"
#include "reports/text.h"

namespace kveval::html {
namespace {

constexpr double kAlpha = 0.05;

// The accuracy and its interval on a line from 0 to 100 %; the numbers stand beside it as text.
std::string range_picture(const Tally& tally) {
  if (tally.scored == 0) return "";
  const Interval interval = tally.interval();
  const auto x = [](double share) { return 4 + 120 * share; };
  return fmt::format(
      R"(<svg class="range" viewBox="0 0 128 16" aria-hidden="true"><line class="axis" x1="4" x2="124" y1="8" y2="8"/>)"
      R"(<line x1="{:.1f}" x2="{:.1f}" y1="8" y2="8"/><circle cx="{:.1f}" cy="8" r="4"/></svg>)",
      x(interval.low), x(interval.high), x(tally.accuracy()));
}

std::string td(std::string_view content, std::string_view css_class = {}) {
  if (css_class.empty()) return fmt::format("<td>{}</td>", content);
  return fmt::format("<td class=\"{}\">{}</td>", css_class, content);
}

bool worse(const CellComparison& cell) { return cell.worse(kAlpha); }

std::string arm_row(const ArmData& data, const CellSamples& samples, const CellComparison* cell) {
  const Tally result = samples.tally_of(data.arm.id);
  const size_t errors = samples.errors_of(data.arm.id);
  std::string row = fmt::format("<tr class=\"sub\"><th scope=\"row\">{}{}</th>", escape(data.arm.name),
                                data.arm.baseline ? " <span class=\"dim\">baseline</span>" : "");
  row += td(fmt::format("{} of {}", result.correct, result.scored));
  row += td(result.scored == 0 ? kNone : percent(result.accuracy()));
  row += td(result.scored == 0 ? kNone : interval_text(result.interval()));
  row += td(range_picture(result));
  row += td(cell ? grouped(cell->losses) : kNone, cell && worse(*cell) ? "loss" : "");
  row += td(cell ? grouped(cell->gains) : kNone);
  row += td(cell ? escape(p_text(cell->p)) + (worse(*cell) ? " *" : "") : kNone,
            cell && worse(*cell) ? "loss" : "");
  row += td(small_text(result.gold_nll));
  row += td(cell ? small_text(cell->kl) : kNone);
  row += td(cell && cell->top1_agreement ? percent(*cell->top1_agreement) : kNone);
  row += td(grouped(result.scorers_disagree));
  row += td(grouped(errors), errors > 0 ? "loss" : "");
  return row + "</tr>\n";
}

std::string scorer_note(const ArmData& data, const Tally& result) {
  if (result.scorers_disagree == 0) return "";
  return fmt::format(
      "<p>{}: the scorers disagree on {} of {}. Right by <em>strict</em> (the whole answer) {}, by "
      "<em>first</em> (it begins with the value) {}, by <em>contains</em> {}.</p>\n",
      escape(data.arm.name), counted(result.scorers_disagree, "answer"), result.scored, result.strict,
      result.first, result.contains);
}

std::string bytes_text(const ArmRecord& arm, double base_bytes) {
  std::string text = fmt::format("{:.0f} B a token", arm.cache_bytes_per_token);
  if (base_bytes > 0)
    text += fmt::format(", {:.0f} % of the baseline", 100 * arm.cache_bytes_per_token / base_bytes);
  return text;
}

}  // namespace

std::string headline(std::span<const ArmData> arms, std::span<const Comparison> comparisons) {
  if (comparisons.empty())
    return "<p>This run has nothing to compare: no second profile has an answer.</p>\n";
  double base_bytes = 0;
  for (const ArmData& data : arms) {
    if (data.arm.baseline) base_bytes = data.arm.cache_bytes_per_token;
  }
  std::string out = "<ul class=\"cards\">\n";
  for (const Comparison& comparison : comparisons) {
    const CellComparison& all = comparison.pooled;
    const size_t bad_cells =
        static_cast<size_t>(std::count_if(comparison.cells.begin(), comparison.cells.end(), worse));
    const bool is_worse = worse(all) || bad_cells > 0;
    out += fmt::format("<li{}><h3>{}</h3>", is_worse ? " class=\"worse\"" : "",
                       escape(comparison.candidate.name));
    if (all.pairs() == 0) {
      out += "<p>No pair could be scored.</p>";
    } else {
      out += fmt::format("<p class=\"big\">{} → {}</p>", percent(all.base.accuracy()),
                         percent(all.candidate.accuracy()));
      out += fmt::format("<p>{} lost, {} gained in {} against {}; p {}</p>", counted(all.losses, "answer"),
                         grouped(all.gains), counted(all.pairs(), "pair"), escape(comparison.base.name),
                         escape(p_text(all.p)));
    }
    out += fmt::format("<p class=\"state\">{}</p>", is_worse ? "▼ Loses answers: more than chance explains"
                                                    : all.losses == 0
                                                        ? "No answer lost here"
                                                        : "Too few haystacks lose to rule out chance");
    out += fmt::format("<p class=\"dim\">{}</p></li>\n", bytes_text(comparison.candidate, base_bytes));
  }
  out += "</ul>\n";
  out +=
      "<p class=\"dim\">A loss is a question that the baseline answers and the profile does not; a gain is "
      "the reverse. p "
      "is the exact chance of so many net losses if the profile changed nothing, with all questions on one "
      "haystack "
      "flipping together. A large p shows no loss in these questions; it does not prove the profile "
      "safe.</p>\n";
  return out;
}

std::string summary(std::span<const ArmData> arms, std::span<const Comparison> comparisons) {
  const std::vector<CellSamples> cells = cells_of(arms);
  std::string table =
      "<table><caption>Accuracy with Wilson 95 % intervals</caption>\n<thead><tr><th scope=\"col\" "
      "class=\"l\">Profile"
      "</th><th scope=\"col\">Right</th><th scope=\"col\">Accuracy</th><th scope=\"col\">95 %</th>"
      "<th scope=\"col\" class=\"l\">0 to 100 %</th><th scope=\"col\">Losses</th><th scope=\"col\">Gains</th>"
      "<th scope=\"col\">p</th><th scope=\"col\">Gold NLL</th><th scope=\"col\">KL</th>"
      "<th scope=\"col\">Same top token</th><th scope=\"col\">Scorers differ</th>"
      "<th scope=\"col\">Errors</th></tr></thead>\n";
  std::string notes;
  for (const CellSamples& cell : cells) {
    const std::string label = cell.length == 0
                                  ? "All together"
                                  : fmt::format("{}, {}", escape(cell.task), length_label(cell.length));
    table += fmt::format(
        "<tbody><tr class=\"group\"><th scope=\"rowgroup\" colspan=\"13\">{} "
        "<span class=\"dim\">{}</span></th></tr>\n",
        label, counted(cell.haystacks, "haystack"));
    bool floor = false;
    for (const ArmData& data : arms) {
      const CellComparison* comparison = find_cell(comparisons, data.arm.id, cell.task, cell.length);
      floor = floor || (comparison != nullptr && comparison->floor());
      table += arm_row(data, cell, comparison);
    }
    table += "</tbody>\n";
    if (floor) {
      notes += fmt::format(
          "<p class=\"notice\">{}: the baseline is right in fewer than 20 % of the questions. There is "
          "too little to lose: no evidence that a profile is safe.</p>\n",
          label);
    }
  }
  table += "</table>";
  if (!cells.empty()) {
    for (const ArmData& data : arms) notes += scorer_note(data, cells.back().tally_of(data.arm.id));
  }

  std::string out = scrolling("Accuracy by length and profile", table) + notes;
  out += fmt::format(
      "<p class=\"dim\">* more losses than gains with p below {:g}{}. Gold NLL: nats the model spends on "
      "the expected answer, mean over questions. KL and same top token: against the baseline's next-token "
      "distribution along the expected answer. Errors are never scored as wrong.</p>\n",
      kAlpha, cells.size() > 1 ? fmt::format(", adjusted for {} cells (Holm)", cells.size() - 1) : "");
  return out;
}

}  // namespace kveval::html
