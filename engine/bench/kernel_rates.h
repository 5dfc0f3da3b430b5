// What the kernels of a forward pass get through on this machine: for predictions of models that
// cannot be run here. Large matrices, as large models have them, from a set larger than the caches.

#pragma once

#include <array>
#include <cstddef>
#include <functional>

#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

struct KernelRates {
  size_t threads = 0;
  // By precision.
  struct Rate {
    double dense_gb_per_s = 0;    // dense weights, one row of activations: decoding
    double dense_gop_per_s = 0;   // useful operations on them with 64 rows: prompts
    double expert_gb_per_s = 0;   // MXFP4 experts, one row each
    double expert_gop_per_s = 0;  // useful operations on them with 8 rows each
    double pack_gb_per_s = 0;     // f32 weights brought into the form that is read
  };
  std::array<Rate, kPrecisions> rates;
  double read_gb_per_s = 0;  // streaming reads, the ceiling of all that

  const Rate& In(Precision precision) const { return rates[static_cast<size_t>(precision)]; }
};

// Takes about three seconds; asks `go_on` (may be empty) in between. kOutOfMemory, kCancelled.
Result<KernelRates> MeasureKernels(ThreadPool& pool, const std::function<bool()>& go_on = {});

}  // namespace mk
