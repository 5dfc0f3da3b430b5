#include "eval/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace mk::eval {
namespace {

// splitmix64 (Steele, Lea and Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  // In [0, n): the upper half of a 128-bit product.
  size_t Below(size_t n) {
    state_ += 0x9E3779B97F4A7C15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    z ^= z >> 31;
    __extension__ using Wide = unsigned __int128;
    return static_cast<size_t>((static_cast<Wide>(z) * n) >> 64);
  }

 private:
  uint64_t state_;
};

double Sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Ratios of the resamples, ascending.
std::vector<double> Resample(std::span<const double> values, std::span<const double> weights,
                             const BootstrapOptions& options) {
  Random random(options.seed);
  std::vector<double> ratios(options.resamples);
  for (double& ratio : ratios) {
    double value = 0;
    double weight = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t drawn = random.Below(values.size());
      value += values[drawn];
      weight += weights[drawn];
    }
    ratio = value / weight;
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios;
}

// From the skewness of the estimates that leave one unit out.
double Acceleration(std::span<const double> values, std::span<const double> weights) {
  const double value = Sum(values);
  const double weight = Sum(weights);
  std::vector<double> without(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    without[i] = (value - values[i]) / (weight - weights[i]);
  }
  const double mean = Sum(without) / static_cast<double>(without.size());
  double squares = 0;
  double cubes = 0;
  for (const double one : without) {
    const double off = mean - one;
    squares += off * off;
    cubes += off * off * off;
  }
  return squares > 0 ? cubes / (6 * std::pow(squares, 1.5)) : 0;
}

// The entries between which a share low..high of them lies.
Bounds Between(const std::vector<double>& ratios, double low, double high) {
  const auto count = static_cast<double>(ratios.size());
  const auto at = [&](double place) {
    return ratios[static_cast<size_t>(std::clamp(place, 0.0, count - 1))];
  };
  return {at(std::floor(low * count)), at(std::ceil(high * count) - 1)};
}

}  // namespace

std::string_view NameOf(BootstrapInterval::Method method) {
  switch (method) {
    case BootstrapInterval::Method::kPercentile:
      return "percentile";
    case BootstrapInterval::Method::kBca:
      return "bca";
    case BootstrapInterval::Method::kNone:
      break;
  }
  return "none";
}

BootstrapInterval Bootstrap(std::span<const double> values, std::span<const double> weights,
                            const BootstrapOptions& options) {
  BootstrapInterval interval;
  if (values.empty()) return interval;
  interval.estimate = Sum(values) / Sum(weights);
  if (values.size() < kFewestUnits || options.resamples == 0) return interval;
  if (!std::isfinite(interval.estimate)) return interval;
  const std::vector<double> ratios = Resample(values, weights, options);
  constexpr double kTail = (1 - kConfidence) / 2;
  interval.method = BootstrapInterval::Method::kPercentile;
  interval.bounds = Between(ratios, kTail, 1 - kTail);
  if (!options.bca) return interval;
  // Those that differ by rounding alone count as equal.
  const double same = 1e-12 * std::abs(interval.estimate);
  double below = 0;
  for (const double ratio : ratios) {
    const double off = ratio - interval.estimate;
    below += std::abs(off) <= same ? 0.5 : off < 0 ? 1 : 0;
  }
  const double z0 = NormalQuantile(below / static_cast<double>(ratios.size()));
  if (!std::isfinite(z0)) return interval;
  const double a = Acceleration(values, weights);
  const auto level = [&](double tail) {
    const double z = z0 + NormalQuantile(tail);
    return NormalCdf(z0 + z / (1 - a * z));
  };
  interval.method = BootstrapInterval::Method::kBca;
  interval.bounds = Between(ratios, level(kTail), level(1 - kTail));
  return interval;
}

uint64_t SeedFor(uint64_t seed, std::string_view measure) {
  uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char c : measure) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  }
  return seed ^ hash;
}

}  // namespace mk::eval
