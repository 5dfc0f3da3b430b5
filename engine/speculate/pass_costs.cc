#include "engine/speculate/pass_costs.h"

#include <algorithm>

namespace mk {
namespace {

// Weight of the newest time. What makes a pass slower is mostly something else on the machine.
constexpr double kWeightFaster = 0.3;
constexpr double kWeightSlower = 0.05;
// A time that is so much longer than expected says something of the machine, not of the pass.
constexpr double kOutlier = 3;
// Until passes of two sizes were seen: what a token more costs, in parts of the smallest pass.
constexpr double kFirstSlope = 0.25;

}  // namespace

size_t PassCosts::IndexOf(size_t rows) {
  const auto* const found = std::lower_bound(kUpTo.begin(), kUpTo.end(), rows);
  return std::min(static_cast<size_t>(found - kUpTo.begin()), kUpTo.size() - 1);
}

void PassCosts::Observe(size_t rows, double seconds) {
  if (rows == 0 || !(seconds > 0)) return;
  Size& size = sizes_[IndexOf(rows)];
  if (!size.seen) {
    size = {static_cast<double>(rows), seconds, true};
    return;
  }
  const double weight = seconds < size.seconds ? kWeightFaster : kWeightSlower;
  size.rows += weight * (static_cast<double>(rows) - size.rows);
  size.seconds += weight * (std::min(seconds, kOutlier * size.seconds) - size.seconds);
}

double PassCosts::Estimate(size_t rows) const {
  const auto wanted = static_cast<double>(rows);
  const Size* first = nullptr;
  const Size* below = nullptr;
  const Size* above = nullptr;
  double least_above = 0;
  for (const Size& size : sizes_) {
    if (!size.seen) continue;
    if (first == nullptr) first = &size;
    if (size.rows <= wanted) {
      below = &size;
    } else {
      if (above == nullptr) above = &size;
      least_above = least_above == 0 ? size.seconds : std::min(least_above, size.seconds);
    }
  }
  if (first == nullptr) return 0;
  if (below == nullptr) return first->seconds;  // smaller than any that was seen
  double estimate = below->seconds;
  if (above != nullptr) {
    const double part = (wanted - below->rows) / (above->rows - below->rows);
    estimate = std::min(below->seconds + part * (above->seconds - below->seconds), least_above);
  } else if (below != first) {
    const double slope = (below->seconds - first->seconds) / (below->rows - first->rows);
    estimate += std::max(0.0, slope) * (wanted - below->rows);
  } else {
    estimate += kFirstSlope * first->seconds / first->rows * (wanted - below->rows);
  }
  return estimate;
}

}  // namespace mk
