// What the machine can do at most, measured where the kernels are measured.

#pragma once

#include <cstddef>

#include "engine/parallel/thread_pool.h"

namespace mk {

struct Ceilings {
  double read_gb_per_s = 0;    // streaming reads of a set far larger than the caches
  double fma_gflop_per_s = 0;  // f32 fused multiply-adds on registers, two operations each
};

// Best of several rounds on all workers of the pool; takes about a second.
Ceilings MeasureCeilings(ThreadPool& pool);

}  // namespace mk
