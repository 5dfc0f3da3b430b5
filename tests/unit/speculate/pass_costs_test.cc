#include "engine/speculate/pass_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace mk {
namespace {

TEST(PassCosts, KnowsNothingAtFirst) {
  EXPECT_EQ(PassCosts().Estimate(1), 0);
}

TEST(PassCosts, IgnoresWhatCannotBe) {
  PassCosts costs;
  costs.Observe(0, 1);
  costs.Observe(1, 0);
  costs.Observe(1, -1);
  costs.Observe(1, std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(costs.Estimate(1), 0);
}

TEST(PassCosts, InterpolatesBetweenWhatWasSeen) {
  PassCosts costs;
  costs.Observe(1, 10);
  EXPECT_GT(costs.Estimate(5), 10);
  costs.Observe(8, 24);
  EXPECT_DOUBLE_EQ(costs.Estimate(1), 10);
  EXPECT_DOUBLE_EQ(costs.Estimate(8), 24);
  EXPECT_DOUBLE_EQ(costs.Estimate(2), 12);
  EXPECT_DOUBLE_EQ(costs.Estimate(16), 40);  // goes on with the same slope
}

TEST(PassCosts, ALargerPassNeverCostsLess) {
  PassCosts costs;
  costs.Observe(1, 10);
  costs.Observe(4, 50);  // disturbed
  costs.Observe(16, 20);
  for (size_t rows = 1; rows < 600; ++rows) {
    EXPECT_LE(costs.Estimate(rows), costs.Estimate(rows + 1)) << rows;
  }
}

TEST(PassCosts, FollowsWhatIsMeasuredAndForgetsOutliers) {
  PassCosts costs;
  costs.Observe(2, 1);
  costs.Observe(2, 1000);
  EXPECT_LT(costs.Estimate(2), 2);
  for (int i = 0; i < 200; ++i) costs.Observe(2, 5);
  EXPECT_NEAR(costs.Estimate(2), 5, 0.01);
  for (int i = 0; i < 20; ++i) costs.Observe(2, 3);
  EXPECT_NEAR(costs.Estimate(2), 3, 0.01);
}

}  // namespace
}  // namespace mk
