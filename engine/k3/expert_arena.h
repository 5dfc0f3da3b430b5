// Where the experts of one layer lie in memory: an image of their part of the file.
//
// Blobs that follow each other in the file with no more than padding between them form a run,
// which is read in one go; runs start at the same offset modulo 64 as in the file, so that floats
// keep their alignment.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/format/mkim_file.h"
#include "engine/k3/expert_store.h"
#include "engine/k3/shape.h"

namespace mk::k3 {

struct ExpertRun {
  uint64_t file_offset = 0;
  size_t arena_offset = 0;
  size_t bytes = 0;
};

struct ExpertArena {
  size_t bytes = 0;
  std::vector<ExpertRun> runs;
  std::vector<size_t> offsets;  // [E][3], of each matrix in the arena
};

// Plans the arena of a MoE layer. kCorrupt when a matrix is missing or has a wrong shape,
// kUnsupported when its type is none that kernels read.
Result<ExpertArena> PlanExpertArena(const MkimFile& file, const K3Shape& shape, size_t layer);

// A matrix whose blob was read to `blob`. kCorrupt for a value that no weight can have: scale byte
// 255 (MXFP4) or a scale that is negative or not finite (MXFP4SQ).
Result<ExpertMatrix> ViewExpert(const MkimFile& file, const TensorEntry& entry,
                                const std::byte* blob, const float* codebook);

}  // namespace mk::k3
