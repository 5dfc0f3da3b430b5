// Which reads bring experts into memory: blobs that lie close together share one.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/expert_cache/key_list.h"
#include "engine/stream/expert_table.h"

namespace mk {

// A part of an expert inside a read.
struct ReadPiece {
  ExpertKey key = 0;
  uint32_t part = 0;
  uint64_t offset = 0;  // in the file
};

struct PlannedRead {
  uint64_t offset = 0;  // in the file
  size_t bytes = 0;
  std::vector<ReadPiece> pieces;  // ascending offsets
  uint64_t end() const { return offset + bytes; }
};

struct ReadPlanOptions {
  bool fuse = true;             // experts may share a read; the parts of one expert always may
  uint64_t hole = 32 << 10;     // bytes between two blobs that are read for nothing
  uint64_t longest = 8u << 20;  // of a shared read
};

// Reads of different keys in ascending order of offsets. Overlapping blobs cannot be: the file was
// checked.
std::vector<PlannedRead> PlanReads(const ExpertTable& table, std::span<const ExpertKey> keys,
                                   const ReadPlanOptions& options);

}  // namespace mk
