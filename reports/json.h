// Comparisons for programs.
#pragma once

#include <span>
#include <string>

#include "reports/comparison.h"

namespace kveval {

// One JSON object, indented, ending in a line break: {"schema": "kveval.compare/1", "alpha", "comparisons":
// [...]}. A member that has no value is null. Members may be added under the same number; a changed meaning
// raises it.
std::string to_json(std::span<const Comparison> comparisons, double alpha);

}  // namespace kveval
