#include "reports/layers.h"

#include <algorithm>
#include <cmath>

namespace kveval {

void PartDamage::add(const DiagnosticRecord& record) {
  elements += record.elements;
  clipped += record.clipped;
  flushed += record.flushed;
  absolute_max = std::max(absolute_max, record.absolute_max);
  error_energy += record.error_energy;
  energy += record.energy;
}

double PartDamage::relative_error() const { return energy > 0 ? std::sqrt(error_energy / energy) : 0; }

std::map<std::pair<int, int>, Damage> damage_by_layer(std::span<const DiagnosticRecord> diagnostics,
                                                      bool merge_heads) {
  std::map<std::pair<int, int>, Damage> rows;
  for (const DiagnosticRecord& record : diagnostics)
    rows[{record.layer, merge_heads ? kAllHeads : record.kv_head}].add(record);
  return rows;
}

}  // namespace kveval
