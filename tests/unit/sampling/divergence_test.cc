#include "engine/sampling/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace mk {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> RandomRow(size_t vocab, std::mt19937_64& random) {
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> row(vocab);
  for (float& logit : row) logit = normal(random);
  return row;
}

// Probabilities in long double, from the definition.
std::vector<long double> Softmax(const std::vector<float>& row) {
  const float largest = *std::max_element(row.begin(), row.end());
  std::vector<long double> p;
  for (const float logit : row) p.push_back(std::exp(static_cast<long double>(logit) - largest));
  const long double sum = std::accumulate(p.begin(), p.end(), 0.0L);
  for (long double& one : p) one /= sum;
  return p;
}

std::set<size_t> Top5(const std::vector<float>& row) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return row[a] > row[b]; });
  order.resize(std::min<size_t>(5, order.size()));
  return {order.begin(), order.end()};
}

TEST(Divergence, IsWhatTheDefinitionSays) {
  std::mt19937_64 random(5);
  for (const size_t vocab : {1, 3, 7, 500}) {
    for (int i = 0; i < 20; ++i) {
      const std::vector<float> p = RandomRow(vocab, random);
      std::vector<float> q = RandomRow(vocab, random);
      if (i % 2 == 0) {
        for (size_t k = 0; k < vocab; ++k) q[k] = p[k] + 0.01f * q[k];
      }
      const auto found = DivergenceOf(p, q);
      ASSERT_TRUE(found);
      const auto mass_p = Softmax(p);
      const auto mass_q = Softmax(q);
      long double kl = 0;
      for (size_t k = 0; k < vocab; ++k) kl += mass_p[k] * std::log(mass_p[k] / mass_q[k]);
      EXPECT_NEAR(found->kl, static_cast<double>(kl),
                  1e-12 + 1e-9 * std::abs(static_cast<double>(kl)));
      EXPECT_EQ(found->same_top, std::max_element(p.begin(), p.end()) - p.begin() ==
                                     std::max_element(q.begin(), q.end()) - q.begin());
      const auto top_p = Top5(p);
      const auto top_q = Top5(q);
      EXPECT_EQ(found->shared_top,
                static_cast<size_t>(std::count_if(top_p.begin(), top_p.end(),
                                                  [&](size_t id) { return top_q.count(id) > 0; })));
    }
  }
}

TEST(Divergence, OfARowFromItselfIsNothing) {
  std::mt19937_64 random(6);
  const std::vector<float> row = RandomRow(300, random);
  const auto found = DivergenceOf(row, row);
  EXPECT_EQ(found->kl, 0);
  EXPECT_TRUE(found->same_top);
  EXPECT_EQ(found->shared_top, kTopTokens);
}

// Noise of variance s^2 on the logits costs s^2 / 2 * (1 - sum P^2) for small s, on average.
TEST(Divergence, GrowsWithNoiseAsItsSecondOrderSays) {
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const std::vector<float> p = RandomRow(64, random);
  long double squares = 0;
  for (const long double one : Softmax(p)) squares += one * one;
  for (const float noise : {0.02f, 0.05f}) {
    double sum = 0;
    constexpr int kRounds = 20'000;
    for (int i = 0; i < kRounds; ++i) {
      std::vector<float> q = p;
      for (float& logit : q) logit += noise * normal(random);
      sum += DivergenceOf(p, q)->kl / kRounds;
    }
    const double expected = 0.5 * noise * noise * (1 - static_cast<double>(squares));
    EXPECT_NEAR(sum / expected, 1, 0.05) << noise;
  }
}

TEST(Divergence, WhatOneHoldsImpossibleIsInfinitelyFar) {
  const std::vector<float> p = {0, 0, 0};
  const std::vector<float> q = {0, -kInf, 0};
  EXPECT_EQ(DivergenceOf(p, q)->kl, std::numeric_limits<double>::infinity());
  // The other way round it is log(3/2).
  EXPECT_NEAR(DivergenceOf(q, p)->kl, std::log(1.5), 1e-15);
}

TEST(Divergence, RefusesWhatIsNoRow) {
  const std::vector<float> good = {0, 1};
  const std::vector<float> bad = {0, std::nanf("")};
  EXPECT_FALSE(DivergenceOf(good, bad));
  EXPECT_FALSE(DivergenceOf(bad, good));
}

}  // namespace
}  // namespace mk
