#include "harness/commands/show_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "harness/commands/commands.h"
#include "harness/commands/terminal_table.h"
#include "reports/layers.h"
#include "reports/text.h"

namespace kveval {
namespace {

using Layers = std::map<std::pair<int, int>, Damage>;

std::string error_text(const PartDamage& part) {
  return part.relative_error() == 0 ? "0" : small_text(100 * part.relative_error()) + "%";
}

}  // namespace

void print_layers(std::span<const ArmData> arms) {
  std::vector<Layers> damage;
  std::vector<TextTable::Column> columns = {
      {"layer", Align::right}, {"largest key", Align::right}, {"value", Align::right}};
  for (const ArmData& arm : arms) {
    damage.push_back(damage_by_layer(arm.diagnostics, true));
    columns.push_back({printable(arm.arm.name, 40) + ": keys", Align::right});
    columns.push_back({"values", Align::right});
  }
  TextTable table(columns);
  Layers all;  // of every arm, for the largest numbers: what the layers make differs little between arms
  for (const ArmData& arm : arms)
    for (const DiagnosticRecord& record : arm.diagnostics) all[{record.layer, kAllHeads}].add(record);
  for (const auto& [layer, any] : all) {
    std::vector<std::string> cells = {std::to_string(layer.first), small_text(any.keys.absolute_max),
                                      small_text(any.values.absolute_max)};
    for (Layers& rows : damage) {
      cells.push_back(error_text(rows[layer].keys));
      cells.push_back(error_text(rows[layer].values));
    }
    table.add(std::move(cells));
  }
  fmt::print("relative error of what the cache gives back, by layer\n{}", table.text());
}

void print_layers_json(const RunRecord& run, std::span<const ArmData> arms) {
  using Json = nlohmann::json;
  const auto part_json = [](const PartDamage& part) {
    return Json{{"absolute_max", part.absolute_max},
                {"relative_error", part.relative_error()},
                {"elements", part.elements},
                {"clipped", part.clipped},
                {"flushed", part.flushed}};
  };
  Json profiles = Json::array();
  for (const ArmData& arm : arms) {
    Json layers = Json::array();
    for (const auto& [layer, damage] : damage_by_layer(arm.diagnostics, true))
      layers.push_back(
          {{"layer", layer.first}, {"keys", part_json(damage.keys)}, {"values", part_json(damage.values)}});
    profiles.push_back({{"name", arm.arm.name}, {"layers", layers}});
  }
  print_json({{"schema", "kveval.show-layers/1"}, {"run", run.id}, {"profiles", profiles}});
}

}  // namespace kveval
