// The tables of `kveval show RUN --layers`.
#pragma once

#include <span>

#include "reports/comparison.h"

namespace kveval {

// One row a layer: the largest key and value, and each profile's relative error on both.
void print_layers(std::span<const ArmData> arms);
void print_layers_json(const RunRecord& run, std::span<const ArmData> arms);

}  // namespace kveval
