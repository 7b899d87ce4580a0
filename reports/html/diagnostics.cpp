#include <fmt/format.h>

#include <string>
#include <string_view>

#include "reports/html/sections.h"
#include "reports/layers.h"
#include "reports/text.h"

namespace kveval::html {
namespace {

// Rows of all arms together; beyond it a layer's heads are merged into one row, to keep the page small.
constexpr size_t kMaxRows = 1500;
constexpr const char* kEdge = " class=\"edge\"";  // a line between keys and values

// A share that is not zero never reads as zero.
std::string share_text(int64_t part, int64_t whole) {
  if (part == 0 || whole == 0) return "0";
  const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 0.001 ? "&lt;0.001 %" : fmt::format("{:.3f} %", share);
}

std::string part_cells(const PartDamage& part, std::string_view first_class) {
  return fmt::format("<td{}>{}</td><td>{}</td><td>{}</td><td>{}</td>", first_class,
                     small_text(part.absolute_max), share_text(part.clipped, part.elements),
                     share_text(part.flushed, part.elements),
                     part.relative_error() == 0 ? "0" : small_text(100 * part.relative_error()) + " %");
}

std::string arm_table(const ArmData& data, bool merge_heads) {
  const auto rows = damage_by_layer(data.diagnostics, merge_heads);
  Damage total;
  for (const DiagnosticRecord& record : data.diagnostics) total.add(record);
  const auto summary_of = [](const char* what, const PartDamage& part) {
    return fmt::format("{} error {}, {} clipped, {} flushed", what, percent(part.relative_error()),
                       share_text(part.clipped, part.elements), share_text(part.flushed, part.elements));
  };
  const std::string name = escape(data.arm.name);
  std::string table =
      "<table><thead><tr><th scope=\"col\" rowspan=\"2\">Layer</th><th scope=\"col\" rowspan=\"2\">KV "
      "head</th>"
      "<th scope=\"colgroup\" colspan=\"4\" class=\"span\">Keys</th>"
      "<th scope=\"colgroup\" colspan=\"4\" class=\"span edge\">Values</th></tr>\n<tr>";
  for (const char* first_class : {"", kEdge}) {
    table += fmt::format(
        "<th scope=\"col\"{}>Largest</th><th scope=\"col\">Clipped</th><th scope=\"col\">Flushed to 0</th>"
        "<th scope=\"col\">Relative error</th>",
        first_class);
  }
  table += "</tr></thead><tbody>\n";
  for (const auto& [key, row] : rows) {
    table += fmt::format("<tr><td>{}</td><td>{}</td>{}{}</tr>\n", key.first,
                         key.second == kAllHeads ? "all" : fmt::format("{}", key.second),
                         part_cells(row.keys, ""), part_cells(row.values, kEdge));
  }
  table += "</tbody></table>";
  return fmt::format("<details><summary>{}: {}; {}</summary>\n{}</details>\n", name,
                     summary_of("keys", total.keys), summary_of("values", total.values),
                     scrolling("What the cache did to " + name, table));
}

}  // namespace

std::string diagnostics(std::span<const ArmData> arms) {
  size_t rows = 0;
  for (const ArmData& data : arms) rows += data.diagnostics.size() / 2;
  if (rows == 0) return "<p class=\"dim\">This run recorded none.</p>\n";
  std::string out =
      "<p class=\"dim\">What storing keys and values did to the numbers, over all prompts. Clipped: beyond "
      "the format's "
      "largest value. Flushed: not zero before, zero after. Relative error: root mean square of the change "
      "over that of "
      "the values.</p>\n";
  if (rows > kMaxRows) out += "<p class=\"dim\">One row a layer: its heads are taken together.</p>\n";
  for (const ArmData& data : arms) {
    if (!data.diagnostics.empty()) out += arm_table(data, rows > kMaxRows);
  }
  return out;
}

}  // namespace kveval::html
