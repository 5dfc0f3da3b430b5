#include "engine/k3/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

namespace mk::k3 {
namespace {

struct Picks {
  std::vector<int32_t> experts;
  std::vector<float> weights;
};

Picks RouteAll(std::vector<float> logits, const std::vector<float>& bias, size_t k,
               float scale = 1.0f) {
  Picks picks{std::vector<int32_t>(k), std::vector<float>(k)};
  EXPECT_TRUE(Route(logits, bias, scale, picks.experts, picks.weights));
  return picks;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

TEST(Router, EqualKeysGoToTheSmallerId) {
  EXPECT_EQ(RouteAll({1, 2, 1, 2, 1, 2}, std::vector<float>(6), 4).experts,
            (std::vector<int32_t>{1, 3, 5, 0}));
  EXPECT_EQ(RouteAll(std::vector<float>(7, 0.5f), std::vector<float>(7), 3).experts,
            (std::vector<int32_t>{0, 1, 2}));
}

TEST(Router, TheBiasSteersTheSelectionAndNotTheWeights) {
  const Picks picks = RouteAll({3, 0, 1}, {-2, 0.5f, 0}, 2);
  EXPECT_EQ(picks.experts, (std::vector<int32_t>{1, 2}));
  const double sum = Sigmoid(0) + Sigmoid(1);
  EXPECT_NEAR(picks.weights[0], Sigmoid(0) / sum, 1e-6);
  EXPECT_NEAR(picks.weights[1], Sigmoid(1) / sum, 1e-6);
}

TEST(Router, TheScaleMultipliesTheWeights) {
  const Picks one = RouteAll({1, 2, 3}, {0, 0, 0}, 2);
  const Picks scaled = RouteAll({1, 2, 3}, {0, 0, 0}, 2, 2.5f);
  EXPECT_EQ(one.experts, scaled.experts);
  for (size_t i = 0; i < 2; ++i) EXPECT_FLOAT_EQ(scaled.weights[i], 2.5f * one.weights[i]);
}

TEST(Router, AllExpertsComeOrderedByKey) {
  EXPECT_EQ(RouteAll({0, 3, -1, 2}, std::vector<float>(4), 4).experts,
            (std::vector<int32_t>{1, 3, 0, 2}));
}

TEST(Router, PicksAreTheHeadOfAStableSort) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    // Few distinct values, so that ties are common.
    std::vector<float> logits(300), bias(300);
    for (float& x : logits) x = static_cast<float>(random() % 7) - 3;
    for (float& x : bias) x = static_cast<float>(random() % 3) * 0.25f;
    const Picks picks = RouteAll(logits, bias, 16);
    std::vector<int32_t> order(300);
    std::iota(order.begin(), order.end(), 0);
    std::vector<float> sigmoid = logits;
    std::vector<int32_t> ignored(1);
    std::vector<float> ignored_weight(1);
    ASSERT_TRUE(Route(sigmoid, bias, 1, ignored, ignored_weight));
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return sigmoid[a] + bias[a] > sigmoid[b] + bias[b];
    });
    order.resize(16);
    EXPECT_EQ(picks.experts, order);
  }
}

TEST(Router, NonFiniteLogitsAreRefused) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (size_t at = 0; at < 20; ++at) {
      std::vector<float> logits(20, 1.0f), bias(20);
      logits[at] = bad;
      Picks picks{std::vector<int32_t>(2), std::vector<float>(2)};
      EXPECT_FALSE(Route(logits, bias, 1, picks.experts, picks.weights));
    }
  }
}

}  // namespace
}  // namespace mk::k3
