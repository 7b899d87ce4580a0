#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>
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

bool worse(const CellComparison& cell) { return cell.losses > cell.gains && cell.p_holm < kAlpha; }

const CellComparison* find_cell(std::span<const Comparison> comparisons, int64_t arm, const std::string& task,
                                int length) {
  for (const Comparison& comparison : comparisons) {
    if (comparison.candidate.id != arm) continue;
    if (length == 0) return &comparison.pooled;
    for (const CellComparison& cell : comparison.cells) {
      if (cell.task == task && cell.length == length) return &cell;
    }
  }
  return nullptr;
}

struct Group {
  std::map<int64_t, std::vector<const SampleView*>> samples;  // by arm
  std::set<std::tuple<std::string_view, int, int>> haystacks;
};

std::string arm_row(const ArmData& data, const Group& group, const CellComparison* cell) {
  const auto samples = group.samples.find(data.arm.id);
  const Tally result = samples == group.samples.end() ? Tally{} : tally(samples->second);
  const size_t asked = samples == group.samples.end() ? 0 : samples->second.size();
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
  row +=
      td(asked > result.scored ? grouped(asked - result.scored) : "0", asked > result.scored ? "loss" : "");
  return row + "</tr>\n";
}

std::string scorer_note(const ArmData& data, const Group& all) {
  const auto samples = all.samples.find(data.arm.id);
  if (samples == all.samples.end()) return "";
  const Tally result = tally(samples->second);
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
      out += fmt::format("<p>{} lost, {} gained in {} against {}; p {}</p>", counted(all.losses, "answer"),
                         grouped(all.gains), counted(all.pairs(), "pair"), escape(comparison.base.name),
                         escape(p_text(all.p)));
    }
    out += fmt::format("<p class=\"state\">{}</p>", is_worse ? "▼ Loses answers: more than chance explains"
                                                    : all.losses == 0 ? "No answer lost here"
                                                                      : "Losses within chance");
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
  std::map<std::pair<std::string, int>, Group> groups;
  Group all;
  const auto add = [](Group& group, const ArmData& data, const SampleView& view) {
    group.samples[data.arm.id].push_back(&view);
    group.haystacks.insert({view.task, view.length, view.haystack});
  };
  for (const ArmData& data : arms) {
    for (const SampleView& view : data.samples) {
      add(groups[{view.task, view.length}], data, view);
      add(all, data, view);
    }
  }
  std::string table =
      "<table><caption>Accuracy with Wilson 95 % intervals</caption>\n<thead><tr><th scope=\"col\" "
      "class=\"l\">Profile"
      "</th><th scope=\"col\">Right</th><th scope=\"col\">Accuracy</th><th scope=\"col\">95 %</th>"
      "<th scope=\"col\" class=\"l\">0 to 100 %</th><th scope=\"col\">Losses</th><th scope=\"col\">Gains</th>"
      "<th scope=\"col\">p</th><th scope=\"col\">Gold NLL</th><th scope=\"col\">KL</th>"
      "<th scope=\"col\">Same top token</th><th scope=\"col\">Scorers differ</th>"
      "<th scope=\"col\">Errors</th></tr></thead>\n";
  std::string notes;
  const auto add_group = [&](const std::string& label, const std::string& task, int length,
                             const Group& group) {
    table += fmt::format(
        "<tbody><tr class=\"group\"><th scope=\"rowgroup\" colspan=\"13\">{} "
        "<span class=\"dim\">{}</span></th></tr>\n",
        label, counted(group.haystacks.size(), "haystack"));
    for (const ArmData& data : arms)
      table += arm_row(data, group, find_cell(comparisons, data.arm.id, task, length));
    table += "</tbody>\n";
    const auto floor =
        std::find_if(comparisons.begin(), comparisons.end(), [&](const Comparison& comparison) {
          const CellComparison* cell = find_cell(comparisons, comparison.candidate.id, task, length);
          return length > 0 && cell != nullptr && cell->floor();
        });
    if (floor != comparisons.end()) {
      notes += fmt::format(
          "<p class=\"notice\">{}: the baseline is right in fewer than 20 % of the questions. There is "
          "too little to lose: this cell is no evidence that a profile is safe.</p>\n",
          label);
    }
  };
  for (const auto& [key, group] : groups) {
    add_group(fmt::format("{}, {}", escape(key.first), length_label(key.second)), key.first, key.second,
              group);
  }
  if (groups.size() > 1) add_group("All together", "", 0, all);
  table += "</table>";
  for (const ArmData& data : arms) notes += scorer_note(data, all);

  std::string out = scrolling("Accuracy by length and profile", table) + notes;
  out += fmt::format(
      "<p class=\"dim\">* more losses than gains with p below {:g}{}. Gold NLL: nats the model spends on "
      "the expected answer, mean over questions. KL and same top token: against the baseline's next-token "
      "distribution along the expected answer. Errors are never scored as wrong.</p>\n",
      kAlpha, groups.size() > 1 ? fmt::format(", adjusted for {} cells (Holm)", groups.size()) : "");
  return out;
}

}  // namespace kveval::html
