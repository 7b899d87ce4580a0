#include "harness/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kveval {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Progress, Durations) {
  EXPECT_EQ(format_duration(0), "0 s");
  EXPECT_EQ(format_duration(7.2), "8 s");
  EXPECT_EQ(format_duration(59.5), "1 min 00 s");
  EXPECT_EQ(format_duration(200), "3 min 20 s");
  EXPECT_EQ(format_duration(2 * 3600 + 300), "2 h 05 min");
  EXPECT_EQ(format_duration(-1), "0 s");
}

TEST(Progress, Bytes) {
  EXPECT_EQ(format_bytes(999), "999 B");
  EXPECT_EQ(format_bytes(1000), "1.00 kB");
  EXPECT_EQ(format_bytes(312e6), "312 MB");
  EXPECT_EQ(format_bytes(12.34e6), "12.3 MB");
  EXPECT_EQ(format_bytes(1.456e9), "1.46 GB");
  EXPECT_EQ(format_bytes(999.9e6), "1.00 GB");
}

Progress halfway() {
  Progress progress;
  progress.done = 9;
  progress.total = 20;
  progress.done_cost = 30;
  progress.total_cost = 120;
  progress.place = "niah 32k #3";
  progress.arm = "e4m3";
  return progress;
}

TEST(Progress, TheEtaWeighsCostNotGroups) {
  // A quarter of the cost took 20 s: 60 s are left, although almost half the groups are done.
  const std::string text = progress_text(halfway(), 20);
  EXPECT_EQ(text, "progress 25 %, 9 of 20 groups, 1 min 00 s left (niah 32k #3 e4m3)");
  EXPECT_THAT(progress_bar(halfway(), 20, 200), HasSubstr("[######..................]"));
  EXPECT_THAT(progress_bar(halfway(), 20, 200), HasSubstr("1 min 00 s left"));
}

TEST(Progress, NoEtaBeforeThereIsEvidence) {
  Progress progress = halfway();
  progress.done_cost = 0.1;
  EXPECT_THAT(progress_text(progress, 20), Not(HasSubstr("left")));
  EXPECT_THAT(progress_text(halfway(), 0.5), Not(HasSubstr("left")));
}

TEST(Progress, FitsTheTerminal) {
  for (const size_t columns : {0U, 10U, 40U, 79U})
    EXPECT_LE(progress_bar(halfway(), 20, columns).size(), columns);
}

TEST(Progress, CostsThatAreUnknownOrExceeded) {
  Progress progress = halfway();
  progress.total_cost = 0;
  EXPECT_THAT(progress_text(progress, 20), HasSubstr("0 %"));
  progress.done = progress.total;
  EXPECT_THAT(progress_text(progress, 20), HasSubstr("100 %"));
  progress.total_cost = 10;
  EXPECT_THAT(progress_bar(progress, 20, 100), HasSubstr("100 %"));
}

}  // namespace
}  // namespace kveval
