// The router, the balancing of mixers and the choice of rows, each alone.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "engine/dsv4/indexer.h"
#include "engine/dsv4/mixer.h"
#include "engine/dsv4/router.h"

namespace mk::dsv4 {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double Score(double logit) {
  return std::sqrt(std::log1p(std::exp(logit)));
}

struct Routed {
  std::vector<int32_t> experts;
  std::vector<float> weights;
  bool good;
};

Routed ByScore(std::vector<float> logits, const std::vector<float>& bias, float scale, size_t k) {
  Routed routed{std::vector<int32_t>(k), std::vector<float>(k), false};
  routed.good = RouteByScore(logits, bias, scale, routed.experts, routed.weights);
  return routed;
}

TEST(Router, TheBiasSteersTheSelectionOnly) {
  const std::vector<float> logits = {0.5f, -1.0f, 2.0f, 0.0f};
  const std::vector<float> bias = {0.0f, 5.0f, 0.0f, 0.3f};
  const Routed routed = ByScore(logits, bias, 2.5f, 3);
  ASSERT_TRUE(routed.good);
  // Keys: 0.987, 5.56, 1.458, 1.133.
  EXPECT_EQ(routed.experts, (std::vector<int32_t>{1, 2, 3}));
  const double sum = Score(-1) + Score(2) + Score(0);
  EXPECT_NEAR(routed.weights[0], 2.5 * Score(-1) / sum, 1e-6);
  EXPECT_NEAR(routed.weights[1], 2.5 * Score(2) / sum, 1e-6);
  EXPECT_NEAR(routed.weights[2], 2.5 * Score(0) / sum, 1e-6);
}

TEST(Router, OfEqualKeysTheSmallerIdComesFirst) {
  const std::vector<float> logits(10, 1.0f);
  std::vector<float> bias(10, 0.0f);
  EXPECT_EQ(ByScore(logits, bias, 1, 4).experts, (std::vector<int32_t>{0, 1, 2, 3}));
  bias[7] = bias[9] = 1.0f;
  EXPECT_EQ(ByScore(logits, bias, 1, 4).experts, (std::vector<int32_t>{7, 9, 0, 1}));
}

TEST(Router, AllExpertsMayBeSelected) {
  const Routed routed = ByScore({0, 2, 1}, {0, 0, 0}, 1, 3);
  EXPECT_EQ(routed.experts, (std::vector<int32_t>{1, 2, 0}));
}

TEST(Router, TinyScoresStillSumToTheScale) {
  for (const float logit : {-40.0f, -80.0f}) {
    const Routed routed = ByScore(std::vector<float>(8, logit), std::vector<float>(8, 0), 1.5f, 2);
    ASSERT_TRUE(routed.good);
    EXPECT_NEAR(routed.weights[0] + routed.weights[1], 1.5, 1e-6);
  }
  // Below the floats that exponentials reach, nothing is left, and nothing is not NaN.
  const Routed none = ByScore(std::vector<float>(8, -400), std::vector<float>(8, 0), 1.5f, 2);
  ASSERT_TRUE(none.good);
  EXPECT_EQ(none.weights, (std::vector<float>{0, 0}));
}

TEST(Router, TablesKeepTheirOrderAndMayRepeat) {
  std::vector<float> logits = {0.5f, -1.0f, 2.0f, 0.0f};
  const std::vector<int32_t> row = {3, 0, 3};
  std::vector<int32_t> experts(3);
  std::vector<float> weights(3);
  ASSERT_TRUE(RouteByTable(logits, row, 1.5f, experts, weights));
  EXPECT_EQ(experts, row);
  const double sum = 2 * Score(0) + Score(0.5);
  EXPECT_NEAR(weights[0], 1.5 * Score(0) / sum, 1e-6);
  EXPECT_NEAR(weights[1], 1.5 * Score(0.5) / sum, 1e-6);
  EXPECT_EQ(weights[2], weights[0]);
}

TEST(Router, LogitsThatAreNotFiniteAreReported) {
  for (const float bad : {kNan, std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(ByScore({0, bad, 1}, {0, 0, 0}, 1, 2).good);
    std::vector<float> logits = {0, bad, 1};
    std::vector<int32_t> experts(1);
    std::vector<float> weights(1);
    EXPECT_FALSE(RouteByTable(logits, experts, 1, experts, weights));
  }
}

TEST(Sinkhorn, AWorkedMatrix) {
  std::vector<float> c = {0.5f,  -1,   0.25f, 2,     1.5f, 0,    -0.75f, 0.1f,
                          -2.0f, 0.3f, 0.9f,  -0.4f, 0,    0.7f, -1.2f,  1.1f};
  const std::vector<double> expected = {0.191202287, 0.057768974, 0.221765023, 0.529262717,
                                        0.620573907, 0.187494123, 0.097411341, 0.09451963,
                                        0.022406673, 0.30260413,  0.606443255, 0.068544942,
                                        0.165816133, 0.452131774, 0.074379381, 0.307671712};
  Sinkhorn(c, 4, 20, 1e-6f);
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(c[i], expected[i], 1e-6) << i;
}

// Softmax of rows, then columns and rows in turn, in f64.
std::vector<double> SinkhornTwin(std::vector<double> c, size_t n, size_t iterations, double e) {
  for (size_t a = 0; a < n; ++a) {
    double sum = 0;
    for (size_t b = 0; b < n; ++b) sum += c[a * n + b] = std::exp(c[a * n + b]);
    for (size_t b = 0; b < n; ++b) c[a * n + b] = c[a * n + b] / sum + e;
  }
  const auto divide = [&](size_t first, size_t step) {
    double sum = e;
    for (size_t i = 0; i < n; ++i) sum += c[first + i * step];
    for (size_t i = 0; i < n; ++i) c[first + i * step] /= sum;
  };
  for (size_t b = 0; b < n; ++b) divide(b, n);
  for (size_t i = 1; i < iterations; ++i) {
    for (size_t a = 0; a < n; ++a) divide(a * n, 1);
    for (size_t b = 0; b < n; ++b) divide(b, n);
  }
  return c;
}

TEST(Sinkhorn, AnyNumberOfStreamsAndIterations) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal(0, 2);
  for (const size_t n : {1, 2, 3, 4, 5, 16}) {
    for (const size_t iterations : {1, 2, 7, 20}) {
      std::vector<double> c(n * n);
      for (double& value : c) value = static_cast<double>(static_cast<float>(normal(random)));
      std::vector<float> ours(c.begin(), c.end());
      Sinkhorn(ours, n, iterations, 1e-6f);
      const std::vector<double> twin = SinkhornTwin(c, n, iterations, 1e-6);
      for (size_t i = 0; i < c.size(); ++i) {
        EXPECT_NEAR(ours[i], twin[i], 2e-6) << n << " streams, " << iterations << " iterations";
      }
    }
  }
}

TEST(Sinkhorn, EqualAndExtremeInputs) {
  std::vector<float> c(16, 3.0f);
  Sinkhorn(c, 4, 20, 1e-6f);
  for (const float value : c) EXPECT_NEAR(value, 0.25, 1e-6);
  for (size_t i = 0; i < 16; ++i) c[i] = i % 3 == 0 ? 80.0f : -80.0f;
  Sinkhorn(c, 4, 20, 1e-6f);
  for (const float value : c) EXPECT_TRUE(std::isfinite(value));
}

std::vector<int32_t> Highest(const std::vector<float>& scores, size_t count) {
  std::vector<int32_t> order(scores.size()), picks(count);
  HighestScores(scores, order, picks);
  return picks;
}

TEST(HighestScores, ComeAscendingAndOfEqualScoresTheLowerRow) {
  EXPECT_EQ(Highest({1, 5, 3, 5, 2}, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(Highest({1, 5, 3, 5, 2}, 3), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(Highest({0, 0, -1, 0, 0}, 3), (std::vector<int32_t>{0, 1, 3}));
  EXPECT_EQ(Highest({0.0f, -0.0f, 0.0f, -0.0f}, 2), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(Highest({-0.0f, 0.0f, 1.0f}, 2), (std::vector<int32_t>{0, 2}));
  EXPECT_EQ(Highest({2, 1}, 2), (std::vector<int32_t>{0, 1}));
}

TEST(HighestScores, EqualAStableSortOfRandomScoresWithTies) {
  std::mt19937 random(1);
  for (int round = 0; round < 300; ++round) {
    const size_t n = 1 + random() % 200;
    const size_t k = 1 + random() % n;
    std::vector<float> scores(n);
    for (float& score : scores) score = static_cast<float>(static_cast<int>(random() % 9)) - 4;
    std::vector<int32_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    order.resize(k);
    std::sort(order.begin(), order.end());
    ASSERT_EQ(Highest(scores, k), order);
  }
}

}  // namespace
}  // namespace mk::dsv4
