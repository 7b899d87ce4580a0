#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "reports/html/sections.h"
#include "reports/text.h"

namespace kveval::html {
namespace {

using Stratum = std::optional<int>;

// One task's grid: depth strata down, lengths across.
struct Axes {
  std::set<int> lengths;
  std::map<Stratum, std::pair<double, size_t>>
      depths;  // sum and number of the true depths, for the row labels
};

struct Cell {
  size_t correct = 0, scored = 0, errors = 0;
};

using Grid = std::map<std::pair<Stratum, int>, Cell>;

std::string row_label(const Stratum& stratum, const std::pair<double, size_t>& depth) {
  if (depth.second > 0) return fmt::format("{:.0f} %", 100 * depth.first / static_cast<double>(depth.second));
  return stratum ? fmt::format("stratum {}", *stratum) : "all";
}

template <class CellMarkup>
std::string map_table(const Axes& axes, std::string_view label, const CellMarkup& markup) {
  std::string out =
      fmt::format("<table class=\"map\" aria-label=\"{}\"><thead><tr><th scope=\"col\">depth</th>", label);
  for (const int length : axes.lengths) out += fmt::format("<th scope=\"col\">{}</th>", length_label(length));
  out += "</tr></thead><tbody>\n";
  for (const auto& [stratum, depth] : axes.depths) {
    out += fmt::format("<tr><th scope=\"row\">{}</th>", row_label(stratum, depth));
    for (const int length : axes.lengths) out += markup(stratum, length);
    out += "</tr>\n";
  }
  return out + "</tbody></table>";
}

constexpr const char* kUntested = "<td class=\"untested\">not asked</td>";

std::string accuracy_map(const Axes& axes, const ArmData& data, const std::string& task) {
  Grid grid;
  Cell total;
  for (const SampleView& view : data.samples) {
    if (view.task != task) continue;
    for (Cell* cell : {&grid[{view.item.stratum, view.length}], &total}) {
      if (view.sample.state == SampleState::ok && view.sample.correct) {
        ++cell->scored;
        cell->correct += *view.sample.correct;
      } else {
        ++cell->errors;
      }
    }
  }
  const std::string name = escape(data.arm.name);
  const std::string table =
      map_table(axes, "Right answers, " + name, [&](const Stratum& stratum, int length) {
        const auto found = grid.find({stratum, length});
        if (found == grid.end()) return std::string(kUntested);
        const Cell& cell = found->second;
        if (cell.scored == 0)
          return fmt::format("<td class=\"untested\">{}</td>", counted(cell.errors, "error"));
        return fmt::format(
            "<td class=\"{}\" title=\"{}, Wilson 95 % {}\">{}/{}{}</td>",
            accuracy_class(cell.correct, cell.scored),
            percent(static_cast<double>(cell.correct) / static_cast<double>(cell.scored)),
            interval_text(wilson(cell.correct, cell.scored)), cell.correct, cell.scored,
            cell.errors > 0 ? fmt::format("<small>{}</small>", counted(cell.errors, "error")) : "");
      });
  return fmt::format("<figure><figcaption>{}<small>{} of {} right{}</small></figcaption>\n{}</figure>\n",
                     name, total.correct, total.scored, data.arm.baseline ? ", baseline" : "", table);
}

std::string difference_map(const Axes& axes, const Comparison& comparison, const std::string& task) {
  std::map<std::pair<Stratum, int>, StratumDifference> grid;
  StratumDifference total;
  for (const CellComparison& cell : comparison.cells) {
    if (cell.task != task) continue;
    for (const StratumDifference& stratum : cell.strata) {
      grid[{stratum.stratum, cell.length}] = stratum;
      total.losses += stratum.losses;
      total.gains += stratum.gains;
    }
  }
  const std::string label = fmt::format("Losses and gains, {} against {}", escape(comparison.candidate.name),
                                        escape(comparison.base.name));
  const std::string table = map_table(axes, label, [&](const Stratum& stratum, int length) {
    const auto found = grid.find({stratum, length});
    if (found == grid.end()) return std::string(kUntested);
    const StratumDifference& cell = found->second;
    const auto net = static_cast<int64_t>(cell.gains) - static_cast<int64_t>(cell.losses);
    const auto pairs = static_cast<int64_t>(cell.pairs);
    // Half of the pairs lost is full orange: in a map of screening size one pair of ten must already show.
    const int64_t colour = std::clamp<int64_t>(200 * net / pairs, -100, 100);
    std::string text;
    if (cell.losses > 0) text += fmt::format("−{}", cell.losses);
    if (cell.gains > 0) text += fmt::format("{}+{}", text.empty() ? "" : " ", cell.gains);
    return fmt::format("<td class=\"n{}\" title=\"{}, {} in {}\">{}</td>", colour,
                       counted(cell.losses, "loss"), counted(cell.gains, "gain"), counted(cell.pairs, "pair"),
                       text.empty() ? "0" : text);
  });
  return fmt::format(
      "<figure><figcaption>change<small>−{} lost, +{} gained</small></figcaption>\n{}</figure>\n",
      total.losses, total.gains, table);
}

std::string legend() {
  std::string out =
      "<div class=\"legend\"><table aria-label=\"Colours of accuracy\"><tbody><tr><th scope=\"row\">"
      "accuracy</th>";
  for (const int percent : {0, 25, 50, 75, 100}) out += fmt::format("<td class=\"c{0}\">{0} %</td>", percent);
  out +=
      "</tr></tbody></table><table aria-label=\"Colours of change\"><tbody><tr><th scope=\"row\">net "
      "change</th>";
  constexpr std::pair<int, const char*> kSteps[] = {
      {-100, "≤ −50 pt"}, {-50, "−25 pt"}, {0, "0"}, {50, "+25 pt"}, {100, "≥ +50 pt"}};
  for (const auto& [colour, text] : kSteps) out += fmt::format("<td class=\"n{}\">{}</td>", colour, text);
  return out + "</tr></tbody></table></div>\n";
}

}  // namespace

std::string accuracy_class(size_t correct, size_t scored) {
  return fmt::format("c{}", scored == 0 ? 0 : (200 * correct + scored) / (2 * scored));  // rounded
}

std::string heat_maps(std::span<const ArmData> arms, std::span<const Comparison> comparisons) {
  std::map<std::string, Axes> tasks;
  for (const ArmData& data : arms) {
    for (const SampleView& view : data.samples) {
      Axes& axes = tasks[view.task];
      axes.lengths.insert(view.length);
      auto& [sum, count] = axes.depths[view.item.stratum];
      if (!view.item.depth) continue;
      sum += *view.item.depth;
      ++count;
    }
  }
  std::string out =
      "<p class=\"dim\">Right answers by the needle's depth in the prompt (down, the end at the bottom) and "
      "by prompt length (across). A cell holds few questions and moves by chance: judge by the "
      "summary.</p>\n";
  out += legend();
  for (const auto& [task, axes] : tasks) {
    if (tasks.size() > 1) out += fmt::format("<h3>{}</h3>\n", escape(task));
    out += "<div class=\"maps\">\n";
    for (const ArmData& data : arms) {
      out += "<div class=\"pair\">\n" + accuracy_map(axes, data, task);
      for (const Comparison& comparison : comparisons) {
        if (comparison.candidate.id == data.arm.id) out += difference_map(axes, comparison, task);
      }
      out += "</div>\n";
    }
    out += "</div>\n";
  }
  return out;
}

}  // namespace kveval::html
