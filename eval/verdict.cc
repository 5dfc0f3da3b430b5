#include "eval/verdict.h"

#include <cmath>
#include <numeric>
#include <vector>

namespace mk::eval {
namespace {

std::string_view VerdictOf(const PairedUnits& units, const BootstrapInterval& difference) {
  if (difference.method == BootstrapInterval::Method::kNone) return "too few to tell";
  const Bounds& bounds = difference.bounds;
  if (bounds.low >= -units.margin && bounds.high <= units.margin) return "equivalent";
  if (bounds.low <= 0 && bounds.high >= 0) return "no difference shown";
  return (bounds.high < 0) == units.less_is_better ? "better" : "worse";
}

}  // namespace

PairedResult Compare(const PairedUnits& units, const BootstrapOptions& options) {
  PairedResult result;
  const size_t n = units.a.size();
  std::vector<double> differences(n);
  for (size_t i = 0; i < n; ++i) {
    differences[i] = units.b[i] - units.a[i];
    if (differences[i] == 0) {
      ++result.ties;
    } else if ((differences[i] < 0) == units.less_is_better) {
      ++result.better;
    } else {
      ++result.worse;
    }
  }
  BootstrapOptions own = options;
  own.seed = SeedFor(options.seed, units.measure);
  result.difference = Bootstrap(differences, units.weights, own);
  result.sign_p = SignTest(result.better, result.worse);
  const auto sum = [](std::span<const double> v) {
    return std::accumulate(v.begin(), v.end(), 0.0);
  };
  const double weight = sum(units.weights);
  if (n > 0) {
    result.a = sum(units.a) / weight;
    result.b = sum(units.b) / weight;
    for (double& d : differences) d /= weight / static_cast<double>(n);
  }
  result.detectable = MinimalEffect(differences);
  result.verdict = VerdictOf(units, result.difference);
  return result;
}

}  // namespace mk::eval
