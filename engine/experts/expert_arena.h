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
#include "engine/experts/expert_store.h"
#include "engine/format/mkim_file.h"

namespace mk {

// The routed experts of a model.
struct ExpertShape {
  size_t experts = 0;          // E, of a layer
  size_t width = 0;            // m: inputs and outputs of an expert
  size_t inner = 0;            // i
  std::vector<bool> in_layer;  // [layers]: whether a layer has experts
};

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
Result<ExpertArena> PlanExpertArena(const MkimFile& file, const ExpertShape& shape, size_t layer);

// Bytes that the prepared form of a matrix takes, in multiples of 64. The type is one that the plan
// let through.
size_t PreparedExpertBytes(const TensorEntry& entry);

// The matrix of an expert that is a part of the file.
ExpertMatrix& MatrixOf(ExpertWeights& expert, ExpertPart part);

// Prepares a matrix whose blob was read to `raw`, writing at `destination`, where the plan reserved
// room. kCorrupt for a value that no weight can have: scale byte 255 (MXFP4) or a scale that is
// negative or not finite (MXFP4SQ).
Result<ExpertMatrix> PrepareExpert(const MkimFile& file, const TensorEntry& entry,
                                   const std::byte* raw, std::byte* destination,
                                   const float* codebook);

}  // namespace mk
