// What the machine can do at most, measured where and when a speed is measured.

#pragma once

#include <cstddef>
#include <functional>

#include "engine/base/result.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

// With all workers of a pool; the best of several rounds.
struct Ceilings {
  size_t threads = 0;
  double read_gb_per_s = 0;        // streaming reads of a set larger than the caches
  double cache_read_gb_per_s = 0;  // reads of kCacheSetBytes again and again
  double fma_gflop_per_s = 0;      // f32 fused multiply-adds on registers, two operations each
  double int8_gop_per_s = 0;       // dot products of bytes on registers, two operations per product
};

inline constexpr size_t kCacheSetBytes = size_t{24} << 20;

// Bytes of the set for streaming reads, larger than the caches of so many cores.
size_t StreamSetBytes(size_t threads);

// Takes about a second; between rounds asks `go_on` (may be empty) whether to. kOutOfMemory,
// kCancelled.
Result<Ceilings> MeasureCeilings(ThreadPool& pool, const std::function<bool()>& go_on = {});

// GB/s of reading a set of `bytes` again and again, each worker its own part of it in order: what
// the weights of a model can be read at, caches included. Sets larger than the one for streaming
// reads are measured as that. Errors as above.
Result<double> MeasureRead(ThreadPool& pool, size_t bytes, const std::function<bool()>& go_on = {});

}  // namespace mk
