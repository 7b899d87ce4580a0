// What storing keys and values did to the numbers, summed up by layer: where a format does its damage.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "harness/store.h"

namespace kveval {

// The keys, or the values, of some layers and heads.
struct PartDamage {
  int64_t elements = 0, clipped = 0, flushed = 0;
  double absolute_max = 0, error_energy = 0, energy = 0;

  void add(const DiagnosticRecord& record);
  double relative_error() const;  // root mean square of the change over that of the numbers
};

struct Damage {
  PartDamage keys, values;
  void add(const DiagnosticRecord& record) { (record.keys ? keys : values).add(record); }
};

inline constexpr int kAllHeads = -1;

// By (layer, KV head), heads taken together as kAllHeads where `merge_heads`.
std::map<std::pair<int, int>, Damage> damage_by_layer(std::span<const DiagnosticRecord> diagnostics,
                                                      bool merge_heads);

}  // namespace kveval
