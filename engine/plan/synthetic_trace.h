// Demands that nobody recorded: routers that pick at random, some experts more often than others.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/replay/demand_trace.h"

namespace mk {

struct SyntheticRouting {
  std::vector<bool> in_layer;  // [layers]: whether a layer has experts
  size_t experts = 0;
  size_t top_k = 0;
  // Zipf's exponent: the r-th most wanted expert of a layer is picked in proportion to r^-skew. 0:
  // all alike. Which ones are wanted differs from layer to layer.
  double skew = 0;
  uint64_t seed = 1;
};

// One pass per element: of a token (1), or of a prompt of so many, whose experts are asked for once
// per layer. Equal arguments give equal traces.
DemandTrace MakeTrace(const SyntheticRouting& routing, const std::vector<size_t>& tokens_of_pass);

}  // namespace mk
