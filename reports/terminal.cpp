#include "reports/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/text.h"

namespace kveval {
namespace {

constexpr size_t kAnswerLimit = 160;  // characters: two lines of a common terminal
constexpr size_t kNameLimit = 120;

enum class Ink { plain, bold, dim, red, green };

std::string paint(std::string text, Ink ink, const TerminalStyle& style) {
  if (!style.colour || ink == Ink::plain || text.empty()) return text;
  const char* code = ink == Ink::bold ? "1" : ink == Ink::dim ? "2" : ink == Ink::red ? "1;31" : "32";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

struct TableCell {
  std::string text;
  Ink ink = Ink::plain;
};

// Rows of equal size; the first is the heading. `left` says which columns are aligned to the left.
std::string render_table(const std::vector<std::vector<TableCell>>& rows, const std::vector<bool>& left,
                         const TerminalStyle& style) {
  std::vector<size_t> widths(left.size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i].text));
  }
  std::string out;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - display_width(row[i].text), ' ');
      const bool last = i + 1 == row.size();
      if (i > 0) out += "  ";
      if (!left[i]) out += padding;
      out += paint(row[i].text, row[i].ink, style);
      if (left[i] && !last) out += padding;  // no trailing blanks
    }
    out += '\n';
  }
  return out;
}

std::vector<TableCell> heading(std::initializer_list<std::string> names) {
  std::vector<TableCell> row;
  for (const std::string& name : names) row.push_back({name, Ink::bold});
  return row;
}

std::string accuracy_text(const Tally& tally) {
  if (tally.scored == 0) return kNone;
  return fmt::format("{:>6} {}", percent(tally.accuracy()), interval_text(tally.interval()));
}

std::string cell_label(std::string_view task, int length, bool several_tasks) {
  if (length == 0) return "all";
  return several_tasks ? printable(task, kNameLimit) + " " + length_label(length) : length_label(length);
}

TableCell losses_cell(const CellComparison& cell, const TerminalStyle& style) {
  return {fmt::format("{}", cell.losses), cell.worse(style.alpha) ? Ink::red : Ink::plain};
}

TableCell p_cell(const CellComparison& cell, const TerminalStyle& style) {
  // The blank keeps the digits of marked and unmarked rows beneath each other.
  const bool marked = cell.worse(style.alpha);
  return {p_text(cell.p) + (marked ? "*" : " "), marked ? Ink::red : Ink::plain};
}

// The cells and, where there are several, the pooled row.
std::vector<const CellComparison*> rows_of(const Comparison& comparison) {
  std::vector<const CellComparison*> rows;
  for (const CellComparison& cell : comparison.cells) rows.push_back(&cell);
  if (rows.size() != 1) rows.push_back(&comparison.pooled);
  return rows;
}

bool several_tasks(const Comparison& comparison) {
  return std::any_of(comparison.cells.begin(), comparison.cells.end(),
                     [&](const CellComparison& cell) { return cell.task != comparison.cells.front().task; });
}

// Column titles; the same profile in two runs needs other names.
std::pair<std::string, std::string> arm_titles(const Comparison& comparison) {
  if (comparison.base.name == comparison.candidate.name) return {"before", "after"};
  return {printable(comparison.base.name, kNameLimit), printable(comparison.candidate.name, kNameLimit)};
}

std::string against(const Comparison& comparison) {
  const bool one_run = comparison.base_run.id == comparison.candidate_run.id;
  const std::string base = printable(comparison.base.name, kNameLimit);
  const std::string candidate = printable(comparison.candidate.name, kNameLimit);
  if (one_run) return fmt::format("{} against {}", candidate, base);
  return fmt::format("{} of run {} against {} of run {}", candidate,
                     printable(comparison.candidate_run.id, kNameLimit), base,
                     printable(comparison.base_run.id, kNameLimit));
}

std::string mark_note(size_t cells, const TerminalStyle& style) {
  return fmt::format("* more losses than gains, p < {:g} (exact, whole haystacks flip{})", style.alpha,
                     cells > 1 ? fmt::format("; Holm over {} cells", cells) : "");
}

// What weakens or qualifies the numbers, one line each.
std::vector<std::string> notes_of(const Comparison& comparison) {
  std::vector<std::string> notes;
  const bool tasks = several_tasks(comparison);
  const auto [base_title, candidate_title] = arm_titles(comparison);
  for (const CellComparison& cell : comparison.cells) {
    if (!cell.floor()) continue;
    notes.push_back(fmt::format("{}: {} is right in only {} of {}: a floor, no evidence of safety",
                                cell_label(cell.task, cell.length, tasks),
                                printable(comparison.base.name, kNameLimit), cell.base.correct,
                                cell.pairs()));
  }
  if (comparison.pooled.lost_pairs > 0) {
    notes.push_back(fmt::format("{}: {} lost to errors, not scored", candidate_title,
                                counted(comparison.pooled.lost_pairs, "pair")));
  }
  if (comparison.only_base > 0 || comparison.only_candidate > 0) {
    notes.push_back(fmt::format("without a partner: {} of the base, {} of the candidate",
                                counted(comparison.only_base, "sample"),
                                counted(comparison.only_candidate, "sample")));
  }
  const auto disagreement = [&](const std::string& name, const Tally& tally) {
    if (tally.scorers_disagree == 0) return;
    notes.push_back(fmt::format("{}: the scorers disagree on {} (right by strict {}, first {}, contains {})",
                                name, counted(tally.scorers_disagree, "answer"), tally.strict, tally.first,
                                tally.contains));
  };
  disagreement(base_title, comparison.pooled.base);
  disagreement(candidate_title, comparison.pooled.candidate);
  return notes;
}

std::string render_notes(const std::vector<std::string>& notes, const TerminalStyle& style) {
  std::string out;
  for (const std::string& note : notes) out += paint(note, Ink::dim, style) + "\n";
  return out;
}

double bytes_of_baseline(std::span<const ArmData> arms) {
  for (const ArmData& data : arms) {
    if (data.arm.baseline) return data.arm.cache_bytes_per_token;
  }
  return 0;
}

std::vector<TableCell> summary_row(const ArmData& data, const Tally& result, const CellComparison* cell,
                                   double base_bytes, const TerminalStyle& style) {
  std::vector<TableCell> row{{printable(data.arm.name, kNameLimit)}, {accuracy_text(result)}};
  if (cell == nullptr) {
    row.insert(row.end(), {{data.arm.baseline ? "baseline" : kNone}, {kNone}, {std::string(kNone) + " "}});
  } else {
    row.insert(row.end(),
               {losses_cell(*cell, style), {fmt::format("{}", cell->gains)}, p_cell(*cell, style)});
  }
  row.push_back({small_text(result.gold_nll)});
  row.push_back({cell == nullptr ? kNone : small_text(cell->kl)});
  const double bytes = data.arm.cache_bytes_per_token;
  row.push_back({fmt::format("{:.0f}", bytes)});
  row.push_back({base_bytes > 0 ? fmt::format("{:.0f}%", 100 * bytes / base_bytes) : kNone});
  return row;
}

}  // namespace

std::string render_comparison(const Comparison& comparison, const TerminalStyle& style) {
  const bool tasks = several_tasks(comparison);
  const auto [base_title, candidate_title] = arm_titles(comparison);
  std::vector<std::vector<TableCell>> rows{heading(
      {"", "pairs", base_title, candidate_title, "losses", "gains", "p ", "NLL", "→ NLL", "KL", "same top"})};
  bool any_mark = false;
  for (const CellComparison* cell : rows_of(comparison)) {
    any_mark = any_mark || cell->worse(style.alpha);
    rows.push_back({{cell_label(cell->task, cell->length, tasks), Ink::bold},
                    {grouped(cell->pairs())},
                    {accuracy_text(cell->base)},
                    {accuracy_text(cell->candidate)},
                    losses_cell(*cell, style),
                    {fmt::format("{}", cell->gains)},
                    p_cell(*cell, style),
                    {small_text(cell->base.gold_nll)},
                    {small_text(cell->candidate.gold_nll)},
                    {small_text(cell->kl)},
                    {cell->top1_agreement ? percent(*cell->top1_agreement) : kNone}});
  }
  std::string out = paint(against(comparison), Ink::bold, style) + "\n";
  out +=
      render_table(rows, {true, false, true, true, false, false, false, false, false, false, false}, style);
  std::vector<std::string> notes = notes_of(comparison);
  if (any_mark) notes.insert(notes.begin(), mark_note(comparison.cells.size(), style));
  return out + render_notes(notes, style);
}

std::string render_flips(const Comparison& comparison, const TerminalStyle& style) {
  if (comparison.flips.empty()) return fmt::format("{}: no flipped sample\n", against(comparison));
  auto [base_title, candidate_title] = arm_titles(comparison);
  const size_t width = std::max(
      {std::string_view("expected").size(), display_width(base_title), display_width(candidate_title)});
  const auto line = [&](const std::string& name, std::string_view value) {
    return fmt::format("  {}{}  {}\n", name, std::string(width - display_width(name), ' '),
                       printable(value, kAnswerLimit));
  };
  std::string out;
  for (const Flip& flip : comparison.flips) {
    out += paint(flip.loss ? "LOSS" : "GAIN", flip.loss ? Ink::red : Ink::green, style);
    out += fmt::format("  {} {} haystack {} question {}", printable(flip.task, kNameLimit),
                       length_label(flip.length), flip.haystack, flip.index);
    if (flip.depth) out += fmt::format(" depth {:.2f}", *flip.depth);
    if (flip.first_divergence) out += fmt::format("  first token apart {}", *flip.first_divergence);
    const std::string show =
        fmt::format("kveval show {}:{}", printable(comparison.candidate_run.id, kNameLimit), flip.number);
    out += fmt::format("  {}  {}\n", printable(flip.item_key, kNameLimit), paint(show, Ink::dim, style));
    out += line("expected", flip.expected);
    out += line(base_title, flip.base_output);
    out += line(candidate_title, flip.candidate_output);
  }
  return out;
}

std::string render_line(const Comparison& comparison) {
  const CellComparison& all = comparison.pooled;
  std::string out = fmt::format("{}: {}, {} in {}, p {}", against(comparison), counted(all.losses, "loss"),
                                counted(all.gains, "gain"), counted(all.pairs(), "pair"), p_text(all.p));
  if (all.lost_pairs > 0) out += fmt::format(", {} lost to errors", counted(all.lost_pairs, "pair"));
  return out + "\n";
}

std::string render_run_summary(const RunRecord& run, std::span<const ArmData> arms,
                               std::span<const Comparison> comparisons, const TerminalStyle& style) {
  const std::vector<CellSamples> sections = cells_of(arms);
  const size_t cells = sections.size() > 1 ? sections.size() - 1 : sections.size();
  const bool tasks = std::any_of(sections.begin(), sections.begin() + static_cast<ptrdiff_t>(cells),
                                 [&](const CellSamples& each) { return each.task != sections.front().task; });
  std::string out = fmt::format("run {}  {}  {}", printable(run.id, kNameLimit),
                                printable(run.suite, kNameLimit), printable(run.model, kNameLimit));
  out = paint(out, Ink::bold, style) + "\n";
  bool any_mark = false;
  for (const CellSamples& section : sections) {
    out += fmt::format("\n{}  {} on {}\n",
                       paint(cell_label(section.task, section.length, tasks), Ink::bold, style),
                       counted(section.questions, "question"), counted(section.haystacks, "haystack"));
    std::vector<std::vector<TableCell>> rows{heading(
        {"profile", "accuracy [95 %]", "losses", "gains", "p ", "NLL", "KL", "cache B/token", "of base"})};
    for (const ArmData& data : arms) {
      const CellComparison* cell = find_cell(comparisons, data.arm.id, section.task, section.length);
      any_mark = any_mark || (cell != nullptr && cell->worse(style.alpha));
      rows.push_back(summary_row(data, section.tally_of(data.arm.id), cell, bytes_of_baseline(arms), style));
    }
    out += render_table(rows, {true, true, false, false, false, false, false, false, false}, style);
  }

  std::vector<std::string> notes;
  if (any_mark) notes.push_back(mark_note(cells, style));
  for (const Comparison& comparison : comparisons) {
    for (const std::string& note : notes_of(comparison)) {
      // What concerns the baseline comes with every comparison.
      if (std::find(notes.begin(), notes.end(), note) == notes.end()) notes.push_back(note);
    }
  }
  if (!notes.empty()) out += "\n" + render_notes(notes, style);
  return out;
}

}  // namespace kveval
