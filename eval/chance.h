// How far chance goes: intervals of shares, tests of signs, the normal distribution. In f64, the
// same on every machine. Thread-safe.

#pragma once

#include <cstdint>
#include <span>

namespace mk::eval {

// 95 %, two-sided; and the chance of seeing an effect for which MinimalEffect is asked.
inline constexpr double kConfidence = 0.95;
inline constexpr double kPower = 0.8;

double NormalCdf(double z);
// Its inverse, for p in (0, 1): accurate to 1e-14 relative to the density. p <= 0: -inf, p >= 1:
// +inf.
double NormalQuantile(double p);

struct Bounds {
  double low = 0;
  double high = 0;
};

// Wilson's interval for a share of `hits` in `count` (Wilson 1927), at kConfidence. `hits` may have
// halves: of probes whose phrasings were answered differently. [0, 1] for none at all.
Bounds WilsonInterval(double hits, uint64_t count);

// Exact two-sided sign test: the chance of so uneven a split of `a` + `b`, or a more uneven one,
// when both signs are equally likely. 1 when there is nothing to split. For right and wrong answers
// of two models to the same questions this is McNemar's exact test.
double SignTest(uint64_t a, uint64_t b);

// The smallest true mean difference that `differences` of such a spread would show with the
// probability kPower, in a two-sided test at 1 - kConfidence: (z_0.975 + z_0.8) * sd / sqrt(n).
// 0 for fewer than two.
double MinimalEffect(std::span<const double> differences);

}  // namespace mk::eval
