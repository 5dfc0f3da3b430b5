// Training of VQ1 codebooks: Lloyd's iterations, bit for bit those of the reference engine.
//
//   start   indices of samples are drawn until min(256, n) distinct ones have come up; entries that
//           are left over are zero
//   rounds  at most 30: every sample goes to its nearest entry (vq1_search.h); an entry becomes the
//           mean of its samples, f64 sums in the order of the samples, rounded to f32; an entry
//           without samples becomes the sample that is farthest from its own (the last one of
//           equals), whose distance then counts as 0
//   end     after a round, but not the first, that has changed no mean

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/result.h"
#include "engine/parallel/page_buffer.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

inline constexpr size_t kTrainingRounds = 30;

struct TrainedCodebook {
  PageBuffer codebook;  // complete (vq1_matmul.h)
  size_t rounds = 0;
  std::span<const float> entries() const;  // [256][16]
};

// `samples`: [n][16], finite. `progress` is called before every round with its number from 0 on;
// false: kCancelled. The result does not depend on the pool. Errors: kOutOfMemory.
Result<TrainedCodebook> TrainCodebook(std::span<const float> samples, uint64_t seed,
                                      ThreadPool& pool,
                                      const std::function<bool(size_t round)>& progress = {});

}  // namespace mk
