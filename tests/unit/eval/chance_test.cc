// Against sums that are done by hand, against the definition, and against values from tables.

#include "eval/chance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace mk::eval {
namespace {

TEST(NormalQuantile, GivesTheValuesOfTables) {
  EXPECT_NEAR(NormalQuantile(0.975), 1.959963984540054, 1e-13);
  EXPECT_NEAR(NormalQuantile(0.8), 0.8416212335729143, 1e-13);
  EXPECT_NEAR(NormalQuantile(0.01), -2.3263478740408408, 1e-13);
  EXPECT_EQ(NormalQuantile(0.5), 0);
}

TEST(NormalQuantile, IsTheInverseOfTheCdf) {
  for (double p = 1e-12; p < 1; p = p < 0.5 ? p * 1.7 : 1 - (1 - p) * 0.55) {
    EXPECT_NEAR(NormalCdf(NormalQuantile(p)) / p, 1, 1e-12) << p;
    if (1 - p < 1e-12) break;
  }
  EXPECT_EQ(NormalQuantile(0), -INFINITY);
  EXPECT_EQ(NormalQuantile(1), INFINITY);
}

// The interval holds the shares s for which |hits/n - s| <= z sqrt(s (1 - s) / n): found by search.
Bounds WilsonBySearch(double share, double n) {
  const double z = 1.959963984540054;
  Bounds bounds{1, 0};
  for (int i = 0; i <= 2'000'000; ++i) {
    const double s = i / 2'000'000.0;
    if (std::abs(share - s) > z * std::sqrt(s * (1 - s) / n) + 1e-15) continue;
    bounds.low = std::min(bounds.low, s);
    bounds.high = std::max(bounds.high, s);
  }
  return bounds;
}

TEST(WilsonInterval, IsWhatItsDefinitionSays) {
  for (const auto& [hits, count] : std::vector<std::pair<double, uint64_t>>{
           {0, 80}, {1, 80}, {27.5, 91}, {40, 80}, {80, 80}, {3, 4}}) {
    const Bounds found = WilsonInterval(hits, count);
    const auto n = static_cast<double>(count);
    const Bounds searched = WilsonBySearch(hits / n, n);
    EXPECT_NEAR(found.low, searched.low, 1e-6) << hits;
    EXPECT_NEAR(found.high, searched.high, 1e-6) << hits;
  }
  EXPECT_NEAR(WilsonInterval(0, 80).high, 0.0458, 5e-5);
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

// Every way in which n signs can fall, counted one by one.
double SignTestByCounting(unsigned a, unsigned b) {
  const unsigned n = a + b;
  const unsigned fewer = std::min(a, b);
  uint64_t as_uneven = 0;
  for (uint64_t signs = 0; signs < (uint64_t{1} << n); ++signs) {
    const auto ones = static_cast<unsigned>(__builtin_popcountll(signs));
    as_uneven += std::min(ones, n - ones) <= fewer ? 1 : 0;
  }
  return static_cast<double>(as_uneven) / static_cast<double>(uint64_t{1} << n);
}

TEST(SignTest, CountsTheWaysInWhichSignsFall) {
  for (unsigned a = 0; a <= 8; ++a) {
    for (unsigned b = 0; b <= 8; ++b) {
      EXPECT_NEAR(SignTest(a, b), SignTestByCounting(a, b), 1e-12) << a << " " << b;
    }
  }
  EXPECT_NEAR(SignTest(1, 9), 0.0215, 5e-5);
  EXPECT_EQ(SignTest(0, 0), 1);
  EXPECT_NEAR(SignTest(480, 520), 0.2172, 1e-3);
}

TEST(MinimalEffect, IsTheSumOfTwoQuantilesTimesTheStandardError) {
  const std::vector<double> differences = {1, 2, 3, 4};  // sd sqrt(5/3)
  EXPECT_NEAR(MinimalEffect(differences),
              (1.959963984540054 + 0.8416212335729143) * std::sqrt(5.0 / 3 / 4), 1e-12);
  EXPECT_EQ(MinimalEffect(std::vector<double>{7}), 0);
}

}  // namespace
}  // namespace mk::eval
