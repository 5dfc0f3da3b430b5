// TimedReplay: how long a run would have waited for experts, on a disk of a given speed.
//
// As a store does it: a layer's misses are read together, what was fetched ahead and is on its way
// is waited for, and the layer goes on when all is there; its own experts stay until it is done.
// What a predictor expects is read while no demand wants the disk; reads that have not begun when
// their layer comes are given up.

#pragma once

#include <cstdint>
#include <vector>

#include "engine/expert_cache/cache_policy.h"
#include "engine/expert_cache/expert_read.h"
#include "engine/replay/demand_predictor.h"
#include "engine/replay/demand_trace.h"
#include "engine/replay/disk_model.h"

namespace mk {

struct TimedOptions {
  CachePolicyKind policy = CachePolicyKind::kAged;
  uint64_t budget = 0;  // bytes, as in DemandTrace::size_of
  DiskTiming disk;
  // What a pass takes when nothing is waited for, spread evenly over its layers.
  double compute_s = 0;
  // The part of that which can go on while experts are on their way.
  double overlap_s = 0;
  // The reads that bring experts; empty: one for each, of its size.
  ReadPlanner plan_reads;
  // Of the reads of a layer that are under way at once; one may be larger. 0: no limit.
  uint64_t bytes_in_flight = 0;
  // Passes that fill the cache before anything is counted.
  size_t warm_up = 0;
  // What the cache holds before the first of them, as far as it fits, the most wanted first.
  std::vector<ExpertKey> preload;
  DemandPredictor* predictor = nullptr;  // may be null
};

struct TimedReplay {
  std::vector<double> stalls_s;  // of every pass that counts
  uint64_t demands = 0;          // experts that layers asked for
  uint64_t hits = 0;             // were there
  uint64_t joined = 0;           // were on their way
  uint64_t prefetches = 0;       // reads ahead
  uint64_t bytes = 0;            // read

  double MeanStall() const;
  // The stall that this share of passes does not exceed; 0 without passes.
  double StallQuantile(double share) const;
};

// `trace.sizes` are bytes to read. An expert that a layer asks for twice counts once.
TimedReplay ReplayTimed(const DemandTrace& trace, const TimedOptions& options);

}  // namespace mk
