#include "reports/layers.h"

#include <gtest/gtest.h>

#include <vector>

namespace kveval {
namespace {

DiagnosticRecord record(int layer, int head, bool keys, double largest, double error, double energy) {
  DiagnosticRecord one;
  one.layer = layer;
  one.kv_head = head;
  one.keys = keys;
  one.elements = 10;
  one.clipped = 1;
  one.flushed = 2;
  one.absolute_max = largest;
  one.error_energy = error;
  one.energy = energy;
  return one;
}

TEST(Layers, HeadsAreTakenTogetherOrApart) {
  const std::vector<DiagnosticRecord> all = {record(0, 0, true, 3, 1, 100), record(0, 1, true, 5, 8, 800),
                                             record(0, 0, false, 2, 0, 0), record(1, 0, true, 1, 4, 16)};
  const auto merged = damage_by_layer(all, true);
  ASSERT_EQ(merged.size(), 2u);
  const PartDamage& keys = merged.at({0, kAllHeads}).keys;
  EXPECT_EQ(keys.absolute_max, 5);
  EXPECT_EQ(keys.elements, 20);
  EXPECT_EQ(keys.clipped, 2);
  EXPECT_EQ(keys.flushed, 4);
  EXPECT_DOUBLE_EQ(keys.relative_error(), 0.1);                     // sqrt(9 / 900)
  EXPECT_EQ(merged.at({0, kAllHeads}).values.relative_error(), 0);  // nothing there: no error either

  const auto apart = damage_by_layer(all, false);
  ASSERT_EQ(apart.size(), 3u);
  EXPECT_DOUBLE_EQ(apart.at({1, 0}).keys.relative_error(), 0.5);
}

}  // namespace
}  // namespace kveval
