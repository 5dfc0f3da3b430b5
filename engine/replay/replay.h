// Replay: how many demands of a recorded trace a cache would have held, entries counted as one
// each.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/expert_cache/cache_policy.h"
#include "engine/replay/demand_trace.h"

namespace mk {

// Demands that found their expert in a cache of `capacity` entries, with the policy's own code.
uint64_t ReplayPolicy(const DemandTrace& trace, CachePolicyKind kind, size_t capacity);

// The same for the best that any policy without prefetching can do: what is used again last goes
// (Belady 1966). A fetched value always comes in.
uint64_t ReplayBelady(const DemandTrace& trace, size_t capacity);

struct MarkovReplay {
  uint64_t hits = 0;
  uint64_t prefetches = 0;  // beside the misses
};
// An LRU cache that fetches ahead what MarkovPredictor expects. Not bounded by Belady.
MarkovReplay ReplayMarkov(const DemandTrace& trace, size_t capacity, size_t top_k, size_t predict);

// Hits of LRU caches of all sizes in one pass (Mattson 1970): element c counts those of c entries.
std::vector<uint64_t> LruHitCurve(const DemandTrace& trace);

}  // namespace mk
