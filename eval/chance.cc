#include "eval/chance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

namespace mk::eval {
namespace {

double Polynomial(std::span<const double> coefficients, double x) {
  double value = 0;
  for (const double c : coefficients) value = value * x + c;
  return value;
}

// Acklam's rational approximation (relative error 1.15e-9), to be refined.
double RoughQuantile(double p) {
  constexpr std::array kA = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                             1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr std::array kB = {-5.447609879822406e+01, 1.615858368580409e+02,  -1.556989798598866e+02,
                             6.680131188771972e+01,  -1.328068155288572e+01, 1.0};
  constexpr std::array kC = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                             -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr std::array kD = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00,
                             3.754408661907416e+00, 1.0};
  constexpr double kTail = 0.02425;
  if (p < kTail) {
    const double q = std::sqrt(-2 * std::log(p));
    return Polynomial(kC, q) / Polynomial(kD, q);
  }
  if (p > 1 - kTail) return -RoughQuantile(1 - p);
  const double q = p - 0.5;
  return q * Polynomial(kA, q * q) / Polynomial(kB, q * q);
}

double LogChoose(double n, double k) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

}  // namespace

double NormalCdf(double z) {
  return 0.5 * std::erfc(-z / std::numbers::sqrt2);
}

double NormalQuantile(double p) {
  if (!(p > 0)) return -std::numeric_limits<double>::infinity();
  if (!(p < 1)) return std::numeric_limits<double>::infinity();
  // The upper half by symmetry: 1 - p is exact there, and the tail of the cdf is not.
  if (p > 0.5) return -NormalQuantile(1 - p);
  const double z = RoughQuantile(p);
  // One step of Halley's method on cdf(z) = p.
  const double error = NormalCdf(z) - p;
  const double step = error * std::sqrt(2 * std::numbers::pi) * std::exp(z * z / 2);
  return z - step / (1 + z * step / 2);
}

Bounds WilsonInterval(double hits, uint64_t count) {
  if (count == 0) return {0, 1};
  const double z = NormalQuantile(0.5 + kConfidence / 2);
  const auto n = static_cast<double>(count);
  const double share = hits / n;
  const double scale = 1 / (1 + z * z / n);
  const double middle = share + z * z / (2 * n);
  const double reach = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {std::max(0.0, scale * (middle - reach)), std::min(1.0, scale * (middle + reach))};
}

double SignTest(uint64_t a, uint64_t b) {
  const auto n = static_cast<double>(a + b);
  const uint64_t fewer = std::min(a, b);
  double tail = 0;
  for (uint64_t k = 0; k <= fewer; ++k) {
    tail += std::exp(LogChoose(n, static_cast<double>(k)) - n * std::numbers::ln2);
  }
  return std::min(1.0, 2 * tail);
}

double MinimalEffect(std::span<const double> differences) {
  const auto n = static_cast<double>(differences.size());
  if (differences.size() < 2) return 0;
  double mean = 0;
  for (const double d : differences) mean += d / n;
  double squares = 0;
  for (const double d : differences) squares += (d - mean) * (d - mean);
  const double z = NormalQuantile(0.5 + kConfidence / 2) + NormalQuantile(kPower);
  return z * std::sqrt(squares / (n - 1) / n);
}

}  // namespace mk::eval
