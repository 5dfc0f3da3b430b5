#include "engine/plan/expert_reads.h"

#include <utility>

#include "engine/stream/expert_table.h"
#include "engine/stream/read_plan.h"

namespace mk {
namespace {

constexpr uint64_t kBlock = 4096;  // of reads past the page cache

// By the first expert that there is: all have one shape.
ExpertShape ShapeOf(const MkimFile& file) {
  ExpertShape shape;
  shape.experts = file.config().n_experts;
  for (uint32_t layer = 0; layer < file.config().n_layers; ++layer) {
    const TensorEntry* gate = file.Expert(layer, 0, ExpertPart::kGate);
    shape.in_layer.push_back(gate != nullptr);
    if (gate == nullptr) continue;
    shape.inner = gate->shape[0];
    shape.width = gate->shape[1];
  }
  return shape;
}

}  // namespace

Result<ReadPlanner> PlanReadsOf(std::shared_ptr<const MkimFile> file) {
  Result<ExpertTable> created = ExpertTable::Create(*file, ShapeOf(*file));
  if (!created) return Fail(created.error());
  // The table points into the file.
  const auto table = std::make_shared<const ExpertTable>(std::move(*created));
  return ReadPlanner([file = std::move(file), table](std::span<const ExpertKey> keys) {
    std::vector<ExpertRead> reads;
    for (const PlannedRead& planned : PlanReads(*table, keys, {})) {
      ExpertRead& read = reads.emplace_back();
      read.bytes = planned.bytes;
      read.disk_bytes = ((planned.end() + kBlock - 1) / kBlock - planned.offset / kBlock) * kBlock;
      for (const ReadPiece& piece : planned.pieces) {
        if (read.keys.empty() || read.keys.back() != piece.key) read.keys.push_back(piece.key);
      }
    }
    return reads;
  });
}

}  // namespace mk
