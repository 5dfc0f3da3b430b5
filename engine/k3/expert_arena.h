// Where the experts of one layer lie in memory, and how they get there.
//
// Blobs that follow each other in the file with no more than padding between them form a run, which
// is read in one go; then every blob is brought into the form that kernels read, 64-byte aligned in
// the arena.

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

// One matrix of an expert.
struct ExpertBlob {
  const TensorEntry* entry = nullptr;
  size_t index = 0;         // expert * 3 + part, parts in the order of ExpertPart
  size_t arena_offset = 0;  // of the prepared matrix
};

struct ExpertRun {
  uint64_t file_offset = 0;
  size_t bytes = 0;
  size_t first_blob = 0;
  size_t blobs = 0;
};

struct ExpertArena {
  size_t bytes = 0;
  std::vector<ExpertBlob> blobs;  // in the order of the file
  std::vector<ExpertRun> runs;
};

// Plans the arena of a MoE layer. kCorrupt when a matrix is missing or has a wrong shape,
// kUnsupported when its type is none that kernels read.
Result<ExpertArena> PlanExpertArena(const MkimFile& file, const K3Shape& shape, size_t layer);

// Prepares a matrix whose blob was read to `raw`, writing at `destination`, where the plan reserved
// room. kCorrupt for a value that no weight can have: scale byte 255 (MXFP4) or a scale that is
// negative or not finite (MXFP4SQ).
Result<ExpertMatrix> PrepareExpert(const MkimFile& file, const TensorEntry& entry,
                                   const std::byte* raw, std::byte* destination,
                                   const float* codebook);

}  // namespace mk::k3
