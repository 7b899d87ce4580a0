#include "engine/cpu/ceilings.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/levels.h"

namespace kveval::cpu {
namespace {

// How fast is the machine's affair; that every level's instructions run here, and are counted, is ours.
class CeilingsOf : public EachLevel {};

TEST_P(CeilingsOf, IsARate) {
  for (const int threads : {1, 3}) {
    const double flops = measure_flops_per_second(*kernels_, threads);
    EXPECT_TRUE(std::isfinite(flops));
    EXPECT_GT(flops, 1e6);
  }
}
KVEVAL_EACH_LEVEL_AND_ARITHMETIC(CeilingsOf);

TEST(Ceilings, AreBothMeasured) {
  const Ceilings ceilings = measure_ceilings(*kernels_named("scalar"), 2);
  EXPECT_GT(ceilings.flops_per_second, 1e6);
  EXPECT_TRUE(std::isfinite(ceilings.bytes_per_second));
  EXPECT_GT(ceilings.bytes_per_second, 1e6);
}

}  // namespace
}  // namespace kveval::cpu
