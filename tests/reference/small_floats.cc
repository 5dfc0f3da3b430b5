#include "tests/reference/small_floats.h"

#include <algorithm>
#include <cmath>

namespace mk::reference {
namespace {

std::vector<double> MakeE4m3() {
  std::vector<double> levels;
  for (int code = 0; code < 127; ++code) {  // 127 is not a number
    const int exponent = code / 8, mantissa = code % 8;
    levels.push_back(exponent == 0 ? mantissa * std::exp2(-9)
                                   : (1 + mantissa / 8.0) * std::exp2(exponent - 7));
  }
  return levels;
}

}  // namespace

const std::vector<double>& E4m3Levels() {
  static const std::vector<double> levels = MakeE4m3();
  return levels;
}

const std::vector<double>& E2m1Levels() {
  static const std::vector<double> levels = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return levels;
}

double NearestLevel(const std::vector<double>& levels, double value, double& margin) {
  const double magnitude = std::min(std::abs(value), levels.back());
  const auto above = std::upper_bound(levels.begin(), levels.end(), magnitude);
  if (above == levels.end()) return std::copysign(levels.back(), value);
  const auto code = static_cast<size_t>(above - levels.begin()) - 1;
  const double low = levels[code], high = levels[code + 1];
  const double beyond = magnitude - (low + high) / 2;
  margin = std::min(margin, std::abs(beyond) / levels.back());
  const bool up = beyond == 0 ? code % 2 == 1 : beyond > 0;
  return std::copysign(up ? high : low, value);
}

int BlockExponent(const std::vector<double>& levels, double largest) {
  int e = -200;
  while (largest > levels.back() * std::exp2(e)) ++e;
  return e;
}

void RoundBlock(const std::vector<double>& levels, double least, std::vector<double>& x,
                size_t begin, size_t end, double& margin) {
  double largest = least;
  for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::abs(x[i]));
  const double scale = std::exp2(BlockExponent(levels, largest));
  // A largest value next to where the scale changes.
  const double fill = largest / (levels.back() * scale);
  if (largest > least) margin = std::min({margin, 1 - fill, 2 * fill - 1});
  for (size_t i = begin; i < end; ++i) x[i] = NearestLevel(levels, x[i] / scale, margin) * scale;
}

std::vector<double> HadamardProduct(const std::vector<double>& x) {
  std::vector<double> y(x.size(), 0.0);
  for (size_t r = 0; r < x.size(); ++r) {
    for (size_t c = 0; c < x.size(); ++c) {
      // The sign is the parity of the bits that row and column share.
      y[r] += (__builtin_popcountll(r & c) % 2 == 0 ? 1.0 : -1.0) * x[c];
    }
    y[r] /= std::sqrt(static_cast<double>(x.size()));
  }
  return y;
}

}  // namespace mk::reference
