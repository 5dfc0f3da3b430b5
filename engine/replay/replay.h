// Replay: how many demands of a recorded trace a cache would have held. Capacities are in what
// DemandTrace::size_of counts: entries, or bytes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/expert_cache/cache_policy.h"
#include "engine/replay/demand_predictor.h"
#include "engine/replay/demand_trace.h"

namespace mk {

// Demands that found their expert in a cache of `capacity`, with the policy's own code.
uint64_t ReplayPolicy(const DemandTrace& trace, CachePolicyKind kind, uint64_t capacity);

// The same for the best that any policy without prefetching can do: what is used again last goes
// (Belady 1966). A fetched value always comes in, if it is not larger than the cache. With values
// of several sizes it is a good choice, but not always the best.
uint64_t ReplayBelady(const DemandTrace& trace, uint64_t capacity);

struct PrefetchReplay {
  uint64_t hits = 0;
  uint64_t prefetches = 0;  // beside the misses
};
// An LRU cache that fetches ahead what a predictor expects, before the demand that made it expect
// that is looked up. Not bounded by Belady.
PrefetchReplay ReplayPredictor(const DemandTrace& trace, uint64_t capacity,
                               DemandPredictor& predictor);
// The same with a MarkovPredictor.
PrefetchReplay ReplayMarkov(const DemandTrace& trace, uint64_t capacity, size_t top_k,
                            size_t predict);

// Hits of LRU caches of all sizes in one pass (Mattson 1970): element c counts those of c entries,
// whatever their sizes.
std::vector<uint64_t> LruHitCurve(const DemandTrace& trace);

}  // namespace mk
