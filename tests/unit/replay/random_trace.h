// Traces to replay, the same in every run.

#pragma once

#include <algorithm>
#include <random>

#include "engine/replay/demand_trace.h"

namespace mk::test {

// `passes` over all layers, `picks` different experts each, low ones more often. `shift` makes
// other experts the frequent ones.
inline DemandTrace RandomTrace(size_t passes, size_t layers, size_t experts, size_t picks,
                               uint32_t seed, size_t shift = 0) {
  DemandTrace trace;
  trace.layers = layers;
  trace.experts = experts;
  std::mt19937 random(seed);
  for (size_t pass = 0; pass < passes; ++pass) {
    for (size_t layer = 0; layer < layers; ++layer) {
      std::vector<size_t> picked;
      while (picked.size() < picks) {
        const size_t low = std::min(random() % experts, random() % experts);
        const size_t expert = (low + shift) % experts;
        if (std::find(picked.begin(), picked.end(), expert) != picked.end()) continue;
        picked.push_back(expert);
        trace.demands.push_back(static_cast<ExpertKey>(layer * experts + expert));
      }
    }
  }
  return trace;
}

}  // namespace mk::test
