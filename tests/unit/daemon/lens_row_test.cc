// A row of logits as a logit lens shows it, against sums and sorts that are written out.

#include "daemon/lens_row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace mk::daemon {
namespace {

TEST(LensRow, AgreesWithAFullSortAndPlainSums) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const size_t count = 1 + random() % 300;
    std::vector<float> logits(count);
    // Few values, so that many are equal.
    for (float& logit : logits) logit = static_cast<float>(random() % 40) / 4.0f - 5.0f;
    const auto next = static_cast<int32_t>(random() % count);
    const size_t top = 1 + random() % 8;
    const auto row = ReduceLensRow(logits, top, next);

    std::vector<int32_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    long double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
    long double entropy = 0;
    std::vector<double> p(count);
    for (size_t i = 0; i < count; ++i) {
      const long double share = std::exp(static_cast<long double>(logits[i])) / sum;
      p[i] = static_cast<double>(share);
      entropy -= share * std::log(share);
    }
    const size_t shown = std::min(top, count);
    ASSERT_EQ(row.ids, std::vector<int32_t>(order.begin(), order.begin() + shown));
    for (size_t i = 0; i < shown; ++i) {
      EXPECT_NEAR(row.probabilities[i], p[static_cast<size_t>(order[i])], 1e-12);
    }
    EXPECT_NEAR(row.entropy, static_cast<double>(entropy), 1e-9);
    ASSERT_TRUE(row.rank);
    EXPECT_EQ(order[*row.rank], next);
    EXPECT_NEAR(*row.probability, p[static_cast<size_t>(next)], 1e-12);
  }
}

TEST(LensRow, NothingIsSaidOfATokenThatDoesNotExist) {
  const std::vector<float> logits = {1, 2};
  EXPECT_FALSE(ReduceLensRow(logits, 1, {}).rank);
  EXPECT_FALSE(ReduceLensRow(logits, 1, 2).rank);
  EXPECT_FALSE(ReduceLensRow(logits, 1, -1).probability);
}

TEST(LensRow, ProbabilitiesOfFarLogitsVanish) {
  const std::vector<float> logits = {3e38f, -3e38f, 3e38f};
  const auto row = ReduceLensRow(logits, 3, 1);
  EXPECT_EQ(row.ids, (std::vector<int32_t>{0, 2, 1}));
  EXPECT_DOUBLE_EQ(row.probabilities[0], 0.5);
  EXPECT_DOUBLE_EQ(row.probabilities[2], 0);
  EXPECT_NEAR(row.entropy, std::log(2.0), 1e-12);
}

TEST(LensRow, SizesAreThoseOfThePopulation) {
  const std::vector<float> values = {1, 2, 3, 6};
  const auto [mean, deviation] = MeanAndDeviation(values);
  EXPECT_DOUBLE_EQ(mean, 3);
  EXPECT_DOUBLE_EQ(deviation, std::sqrt(3.5));
  EXPECT_DOUBLE_EQ(RootMeanSquare(values), std::sqrt(12.5));
}

}  // namespace
}  // namespace mk::daemon
