#include "engine/sampling/log_probs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(LogSumExp, IsExactWhereItIsKnown) {
  EXPECT_NEAR(*LogSumExp(std::vector<float>(1000, 2.5f)), 2.5 + std::log(1000.0), 1e-12);
  EXPECT_EQ(*LogSumExp(std::vector<float>{-kInf, 3.0f, -kInf}), 3.0);
  // Far beyond what exp can take.
  EXPECT_NEAR(*LogSumExp(std::vector<float>{1e30f, 1e30f}), 1e30, 1e24);
  EXPECT_NEAR(*LogSumExp(std::vector<float>{-2000.0f, -2000.0f}), -2000.0 + std::log(2.0), 1e-9);
}

TEST(LogSumExp, BrokenRowsAreErrors) {
  for (const std::vector<float>& row : {std::vector<float>{1, kNan}, std::vector<float>{1, kInf},
                                        std::vector<float>{-kInf}, std::vector<float>{}}) {
    const Result<double> sum = LogSumExp(row);
    ASSERT_FALSE(sum);
    EXPECT_EQ(sum.error().code, ErrorCode::kNumeric);
  }
}

TEST(LikeliestTokens, EqualAFullSortAndRanks) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<float> row(round % 10 == 0 ? 163840 : 1 + random() % 400);
    for (float& l : row) {
      l = std::round(std::normal_distribution<float>(0, 2)(random));  // heavy ties
      if (random() % 9 == 0) l = -kInf;
    }
    row[random() % row.size()] = 1.0f;
    std::vector<int32_t> order(row.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    const double log_sum = *LogSumExp(row);
    const size_t count = random() % 21;
    const auto top = LikeliestTokens(row, log_sum, count);
    ASSERT_EQ(top.size(), std::min(count, row.size()));
    for (size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].id, order[i]);
      ASSERT_EQ(top[i].logprob, static_cast<double>(row[static_cast<size_t>(order[i])]) - log_sum);
    }
    for (size_t i = 0; i < std::min<size_t>(row.size(), 50); ++i) {
      ASSERT_EQ(RankOf(row, order[i]), i + 1);
    }
  }
}

TEST(LikeliestTokens, ProbabilitiesSumToOne) {
  std::mt19937 random(8);
  std::vector<float> row(300);
  for (float& l : row) l = std::normal_distribution<float>(0, 4)(random);
  double sum = 0;
  for (const TokenLogProb& one : LikeliestTokens(row, *LogSumExp(row), row.size())) {
    EXPECT_LE(one.logprob, 0.0);
    sum += std::exp(one.logprob);
  }
  EXPECT_NEAR(sum, 1.0, 1e-12);
}

}  // namespace
}  // namespace mk
