#include "engine/stream/read_plan.h"

#include <algorithm>

namespace mk {
namespace {

struct Blob {
  ReadPiece piece;
  uint64_t bytes = 0;
};

bool Joins(const PlannedRead& read, const Blob& blob, const ReadPlanOptions& options) {
  if (!options.fuse && read.pieces.back().key != blob.piece.key) return false;
  const uint64_t hole = blob.piece.offset - read.end();
  return hole <= options.hole && read.bytes + hole + blob.bytes <= options.longest;
}

}  // namespace

std::vector<PlannedRead> PlanReads(const ExpertTable& table, std::span<const ExpertKey> keys,
                                   const ReadPlanOptions& options) {
  std::vector<Blob> blobs;
  blobs.reserve(keys.size() * kExpertParts);
  for (const ExpertKey key : keys) {
    for (uint32_t part = 0; part < kExpertParts; ++part) {
      const TensorEntry& entry = *table[key].parts[part];
      blobs.push_back({{key, part, entry.offset}, entry.size});
    }
  }
  std::sort(blobs.begin(), blobs.end(),
            [](const Blob& a, const Blob& b) { return a.piece.offset < b.piece.offset; });
  std::vector<PlannedRead> reads;
  for (const Blob& blob : blobs) {
    if (reads.empty() || !Joins(reads.back(), blob, options)) {
      reads.push_back({blob.piece.offset, 0, {}});
    }
    PlannedRead& read = reads.back();
    read.bytes = static_cast<size_t>(blob.piece.offset + blob.bytes - read.offset);
    read.pieces.push_back(blob.piece);
  }
  return reads;
}

}  // namespace mk
