#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "reports/html/sections.h"
#include "reports/text.h"

namespace kveval::html {
namespace {

// All flips together: with the rest of the page this stays below the 2 MB that browsers and CI viewers take
// well.
constexpr size_t kFlipBytes = 1'000'000;
constexpr size_t kAnswerLimit = 300;  // characters

// The candidate's answer, from the first character that is not the base's.
std::string marked(const std::string& base, const std::string& candidate) {
  const std::string before = printable(base, kAnswerLimit);
  const std::string after = printable(candidate, kAnswerLimit);
  if (after.empty()) return "<span class=\"dim\">(empty)</span>";
  size_t same = static_cast<size_t>(
      std::mismatch(before.begin(), before.end(), after.begin(), after.end()).second - after.begin());
  while (same > 0 && same < after.size() && (static_cast<unsigned char>(after[same]) & 0xC0) == 0x80) --same;
  if (same == after.size()) return escape(after, kAnswerLimit);
  return fmt::format("{}<mark>{}</mark>", escape(after.substr(0, same), kAnswerLimit),
                     escape(after.substr(same), kAnswerLimit));
}

std::string flip_row(const Flip& flip, const RunRecord& run) {
  std::string out = fmt::format("<tr><td class=\"l\"><span class=\"tag {}\">{}</span></td>",
                                flip.loss ? "loss" : "gain", flip.loss ? "▼ loss" : "▲ gain");
  out += fmt::format("<td class=\"l\">{} {}, haystack {}, question {}</td>", escape(flip.task),
                     length_label(flip.length), flip.haystack, flip.index);
  out += fmt::format("<td>{}</td>", flip.depth ? fmt::format("{:.0f} %", 100 * *flip.depth) : kNone);
  out += fmt::format("<td class=\"l answer\"><code>{}</code></td>", escape(flip.expected, kAnswerLimit));
  out += fmt::format("<td class=\"l answer\"><code>{}</code></td>",
                     flip.base_output.empty() ? "<span class=\"dim\">(empty)</span>"
                                              : escape(flip.base_output, kAnswerLimit));
  out += fmt::format("<td class=\"l answer\"><code>{}</code></td>",
                     marked(flip.base_output, flip.candidate_output));
  out +=
      fmt::format("<td>{}</td>", flip.first_divergence ? fmt::format("{}", *flip.first_divergence) : kNone);
  out +=
      fmt::format("<td class=\"l\"><code>kveval show {}:{}</code></td></tr>\n", escape(run.id), flip.number);
  return out;
}

}  // namespace

std::string flips(const RunRecord& run, std::span<const Comparison> comparisons) {
  std::string out;
  size_t spent = 0;
  for (const Comparison& comparison : comparisons) {
    const std::string name = escape(comparison.candidate.name);
    const std::string base = escape(comparison.base.name);
    const CellComparison& all = comparison.pooled;
    out +=
        fmt::format("<h3>{}: {}, {}</h3>\n", name, counted(all.losses, "loss"), counted(all.gains, "gain"));
    if (comparison.flips.empty()) {
      out += fmt::format("<p class=\"dim\">Every question is as right or as wrong as under {}.</p>\n", base);
      continue;
    }
    std::string rows;
    size_t shown = 0;
    for (const Flip& flip : comparison.flips) {
      std::string row = flip_row(flip, run);
      if (spent + row.size() > kFlipBytes) break;
      spent += row.size();
      rows += row;
      ++shown;
    }
    if (shown > 0) {
      const std::string table = fmt::format(
          "<table><thead><tr><th scope=\"col\" class=\"l\">Flip</th><th scope=\"col\" class=\"l\">Where</th>"
          "<th scope=\"col\">Depth</th><th scope=\"col\" class=\"l\">Expected</th><th scope=\"col\" "
          "class=\"l\">{}</th>"
          "<th scope=\"col\" class=\"l\">{}</th><th scope=\"col\">First token apart</th>"
          "<th scope=\"col\" class=\"l\">Open</th></tr></thead><tbody>\n{}</tbody></table>",
          base, name, rows);
      out += scrolling("Flipped answers of " + name, table);
    }
    if (shown < comparison.flips.size()) {
      out += fmt::format("<p>{} more: <code>kveval compare {} --candidate {} --flips</code></p>\n",
                         counted(comparison.flips.size() - shown, "flip"), escape(run.id), name);
    }
  }
  return out;
}

}  // namespace kveval::html
