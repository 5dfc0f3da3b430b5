#include "routing/load.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace mk::routing {

Load LoadOf(std::span<const uint64_t> counts) {
  Load load;
  for (const uint64_t count : counts) {
    load.picks += count;
    if (count == 0) ++load.unused;
  }
  if (load.picks == 0) return load;
  const auto total = static_cast<double>(load.picks);
  const auto experts = static_cast<double>(counts.size());
  double entropy = 0;
  for (const uint64_t count : counts) {
    const double share = static_cast<double>(count) / total;
    if (count > 0) entropy -= share * std::log(share);
  }
  load.entropy = counts.size() > 1 ? std::max(0.0, entropy) / std::log(experts) : 1;
  // With counts in ascending order: sum_i (2 i - E + 1) c_i / (E sum c), i from 0.
  std::vector<uint64_t> ascending(counts.begin(), counts.end());
  std::sort(ascending.begin(), ascending.end());
  double weighted = 0;
  for (size_t i = 0; i < ascending.size(); ++i) {
    weighted += (2 * static_cast<double>(i) - experts + 1) * static_cast<double>(ascending[i]);
  }
  load.gini = weighted / (experts * total);
  return load;
}

}  // namespace mk::routing
