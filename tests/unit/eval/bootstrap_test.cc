#include "eval/bootstrap.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace mk::eval {
namespace {

using Method = BootstrapInterval::Method;

std::vector<double> Normal(size_t count, double mean, double spread, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(mean, spread);
  std::vector<double> values(count);
  for (double& value : values) value = normal(random);
  return values;
}

// The same numbers by another way: counts of how often a unit is drawn, sums in long double, and
// the whole BCa formula of Efron (1987) written out once more.
struct Again {
  std::vector<double> ratios;
  Bounds percentile;
  Bounds bca;
};

uint64_t NextSplitMix(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// floor(x * n / 2^64) by halves of 32 bits.
size_t Scaled(uint64_t x, uint64_t n) {
  const uint64_t low = (x & 0xFFFFFFFFULL) * n;
  return static_cast<size_t>(((x >> 32) * n + (low >> 32)) >> 32);
}

Again BootstrapAgain(const std::vector<double>& values, const std::vector<double>& weights,
                     const BootstrapOptions& options) {
  Again again;
  const size_t n = values.size();
  uint64_t state = options.seed;
  for (uint32_t r = 0; r < options.resamples; ++r) {
    std::vector<unsigned> drawn(n);
    for (size_t i = 0; i < n; ++i) ++drawn[Scaled(NextSplitMix(state), n)];
    long double value = 0;
    long double weight = 0;
    for (size_t i = 0; i < n; ++i) {
      value += static_cast<long double>(drawn[i]) * values[i];
      weight += static_cast<long double>(drawn[i]) * weights[i];
    }
    again.ratios.push_back(static_cast<double>(value / weight));
  }
  std::sort(again.ratios.begin(), again.ratios.end());
  const double count = options.resamples;
  const auto between = [&](double low, double high) {
    return Bounds{again.ratios[static_cast<size_t>(std::floor(low * count))],
                  again.ratios[static_cast<size_t>(std::ceil(high * count)) - 1]};
  };
  again.percentile = between(0.025, 0.975);
  long double all = 0;
  long double weight = 0;
  for (size_t i = 0; i < n; ++i) {
    all += values[i];
    weight += weights[i];
  }
  const auto estimate = static_cast<double>(all / weight);
  const auto below = static_cast<double>(std::count_if(again.ratios.begin(), again.ratios.end(),
                                                       [&](double r) { return r < estimate; }));
  std::vector<long double> jackknife;
  long double mean = 0;
  for (size_t i = 0; i < n; ++i) {
    jackknife.push_back((all - values[i]) / (weight - weights[i]));
    mean += jackknife.back() / n;
  }
  long double cubes = 0;
  long double squares = 0;
  for (const long double one : jackknife) {
    cubes += (mean - one) * (mean - one) * (mean - one);
    squares += (mean - one) * (mean - one);
  }
  const auto a = static_cast<double>(cubes / (6 * std::pow(squares, 1.5L)));
  const double z0 = NormalQuantile(below / count);
  const auto level = [&](double z) { return NormalCdf(z0 + (z0 + z) / (1 - a * (z0 + z))); };
  again.bca = between(level(-1.959963984540054), level(1.959963984540054));
  return again;
}

TEST(Bootstrap, GivesWhatTheFormulasGiveWrittenOnceMore) {
  const std::vector<double> values = Normal(40, 0.3, 1, 1);
  std::vector<double> skewed;
  for (const double value : values) skewed.push_back(std::exp(value));
  std::vector<double> weights;
  for (size_t i = 0; i < values.size(); ++i) weights.push_back(1 + static_cast<double>(i % 7));
  for (const auto& numbers : {values, skewed}) {
    BootstrapOptions options;
    options.seed = 77;
    options.resamples = 3000;
    const Again again = BootstrapAgain(numbers, weights, options);
    const BootstrapInterval bca = Bootstrap(numbers, weights, options);
    options.bca = false;
    const BootstrapInterval plain = Bootstrap(numbers, weights, options);
    EXPECT_EQ(bca.method, Method::kBca);
    EXPECT_EQ(plain.method, Method::kPercentile);
    EXPECT_NEAR(plain.bounds.low, again.percentile.low, 1e-12);
    EXPECT_NEAR(plain.bounds.high, again.percentile.high, 1e-12);
    EXPECT_NEAR(bca.bounds.low, again.bca.low, 1e-12);
    EXPECT_NEAR(bca.bounds.high, again.bca.high, 1e-12);
    EXPECT_LT(bca.bounds.low, bca.estimate);
    EXPECT_GT(bca.bounds.high, bca.estimate);
  }
}

// The share of intervals of simulated pairs that hold the true mean difference.
double Coverage(bool bca, bool skewed, size_t pairs) {
  std::mt19937_64 random(skewed ? 8 : 7);
  std::normal_distribution<double> normal;
  size_t covered = 0;
  for (size_t p = 0; p < pairs; ++p) {
    constexpr size_t kUnits = 150;
    std::vector<double> differences(kUnits);
    const std::vector<double> weights(kUnits, 1.0);
    for (double& d : differences) {
      // Both models find a document hard together; what is left differs by `truth` on average.
      const double hard = 3 + normal(random);
      const double noise = normal(random);
      const double a = hard;
      const double b =
          hard + 0.1 + (skewed ? std::exp(0.5 * noise) - std::exp(0.125) : 0.4 * noise);
      d = b - a;
    }
    BootstrapOptions options;
    options.seed = p;
    options.resamples = 1500;
    options.bca = bca;
    const Bounds bounds = Bootstrap(differences, weights, options).bounds;
    covered += bounds.low <= 0.1 && 0.1 <= bounds.high ? 1 : 0;
  }
  return static_cast<double>(covered) / static_cast<double>(pairs);
}

TEST(Bootstrap, HoldsTheTruthIn93To97OfAHundredOf400SimulatedPairs) {
  for (const bool bca : {false, true}) {
    const double coverage = Coverage(bca, false, 400);
    EXPECT_GE(coverage, 0.93) << bca;
    EXPECT_LE(coverage, 0.97) << bca;
  }
}

TEST(Bootstrap, BcaHoldsTheTruthOfSkewedDifferences) {
  const double coverage = Coverage(true, true, 400);
  EXPECT_GE(coverage, 0.92);
  EXPECT_LE(coverage, 0.97);
}

TEST(Bootstrap, OfEqualUnitsIsThePoint) {
  const std::vector<double> values(30, 0.25);
  const std::vector<double> weights(30, 1.0);
  const BootstrapInterval interval = Bootstrap(values, weights, {});
  EXPECT_NEAR(interval.estimate, 0.25, 1e-15);
  EXPECT_NEAR(interval.bounds.low, 0.25, 1e-12);
  EXPECT_NEAR(interval.bounds.high, 0.25, 1e-12);
}

TEST(Bootstrap, RefusesFewUnitsAndWhatIsNoNumber) {
  const std::vector<double> ones(9, 1.0);
  EXPECT_EQ(Bootstrap(ones, ones, {}).method, Method::kNone);
  EXPECT_EQ(Bootstrap({}, {}, {}).method, Method::kNone);
  std::vector<double> infinite(20, 1.0);
  infinite[3] = INFINITY;
  EXPECT_EQ(Bootstrap(infinite, std::vector<double>(20, 1.0), {}).method, Method::kNone);
}

TEST(Bootstrap, DependsOnTheSeedAlone) {
  const std::vector<double> values = Normal(25, 0, 1, 3);
  const std::vector<double> weights(25, 1.0);
  const auto low = [&](uint64_t seed) {
    BootstrapOptions options;
    options.seed = seed;
    return Bootstrap(values, weights, options).bounds.low;
  };
  EXPECT_EQ(low(5), low(5));
  EXPECT_NE(low(5), low(6));
  // FNV-1a-64 of "" and "a", from its specification.
  EXPECT_EQ(SeedFor(0, ""), 0xCBF29CE484222325ULL);
  EXPECT_EQ(SeedFor(0, "a"), 0xAF63DC4C8601EC8CULL);
  EXPECT_EQ(SeedFor(1, "a"), 0xAF63DC4C8601EC8DULL);
}

}  // namespace
}  // namespace mk::eval
