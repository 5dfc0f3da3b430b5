// How evenly tokens spread over the experts of a layer.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace mk::routing {

struct Load {
  uint64_t picks = 0;
  // Entropy of the shares of all experts over that of even shares: 1, all alike; 0, one has all.
  double entropy = 0;
  // Gini coefficient of the counts: 0, all alike; towards 1, few have all.
  double gini = 0;
  size_t unused = 0;  // experts that were never picked
};

// `counts`: of every expert of the layer, zeros included.
Load LoadOf(std::span<const uint64_t> counts);

}  // namespace mk::routing
