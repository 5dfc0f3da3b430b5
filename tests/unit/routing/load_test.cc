#include "routing/load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace mk::routing {
namespace {

TEST(Load, EvenAndUneven) {
  const Load even = LoadOf(std::vector<uint64_t>(8, 3));
  EXPECT_EQ(even.picks, 24u);
  EXPECT_NEAR(even.entropy, 1, 1e-12);
  EXPECT_NEAR(even.gini, 0, 1e-12);
  EXPECT_EQ(even.unused, 0u);
  const Load one = LoadOf(std::vector<uint64_t>{0, 0, 9, 0});
  EXPECT_NEAR(one.entropy, 0, 1e-12);
  EXPECT_NEAR(one.gini, 0.75, 1e-12);
  EXPECT_EQ(one.unused, 3u);
  const Load none = LoadOf(std::vector<uint64_t>{0, 0});
  EXPECT_EQ(none.picks, 0u);
  EXPECT_EQ(none.unused, 2u);
}

// Gini: the mean difference of all pairs, over twice the mean.
TEST(Load, AgreesWithTheDefinitions) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<uint64_t> counts(2 + random() % 60);
    for (uint64_t& count : counts) count = random() % 20;
    counts[0] = 1;
    double total = 0;
    double differences = 0;
    for (const uint64_t a : counts) {
      total += static_cast<double>(a);
      for (const uint64_t b : counts) differences += std::abs(double(a) - double(b));
    }
    double entropy = 0;
    for (const uint64_t a : counts) {
      if (a > 0) entropy -= double(a) / total * std::log2(double(a) / total);
    }
    const Load load = LoadOf(counts);
    const auto n = static_cast<double>(counts.size());
    EXPECT_NEAR(load.gini, differences / (2 * n * total), 1e-12);
    EXPECT_NEAR(load.entropy, entropy / std::log2(n), 1e-12);
  }
}

}  // namespace
}  // namespace mk::routing
