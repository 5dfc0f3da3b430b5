#include "engine/stream/expert_table.h"

#include <algorithm>
#include <limits>
#include <string>

namespace mk {

Result<ExpertTable> ExpertTable::Create(const MkimFile& file, const ExpertShape& shape) {
  ExpertTable table;
  table.experts_ = shape.experts;
  table.in_layer_ = shape.in_layer;
  table.records_.resize(shape.in_layer.size() * shape.experts);
  for (size_t layer = 0; layer < shape.in_layer.size(); ++layer) {
    if (!shape.in_layer[layer]) continue;
    Result<ExpertArena> plan = PlanExpertArena(file, shape, layer);
    if (!plan) return Fail(plan.error());
    for (const ExpertBlob& blob : plan->blobs) {
      table.records_[table.KeyOf(layer, blob.index / kExpertParts)]
          .parts[blob.index % kExpertParts] = blob.entry;
    }
  }
  for (ExpertRecord& record : table.records_) {
    if (record.parts[0] == nullptr) continue;
    uint64_t bytes = 0;
    uint64_t in_file = 0;
    for (size_t p = 0; p < kExpertParts; ++p) {
      record.value_offset[p] = static_cast<uint32_t>(bytes);
      bytes += PreparedExpertBytes(*record.parts[p]);
      in_file += record.parts[p]->size;
      if (bytes > std::numeric_limits<uint32_t>::max()) {
        return Fail(ErrorCode::kUnsupported,
                    file.path() + ": " + std::string(record.parts[p]->name) +
                        " belongs to an expert of more than 4 GiB, which cannot be streamed",
                    "load the model without streaming");
      }
    }
    record.value_bytes = static_cast<uint32_t>(bytes);
    table.largest_value_ = std::max<size_t>(table.largest_value_, record.value_bytes);
    table.largest_record_ = std::max(table.largest_record_, in_file);
    table.all_values_ += bytes;
  }
  return table;
}

Status PreparePart(const MkimFile& file, const ExpertRecord& record, size_t part,
                   const std::byte* blob, std::byte* value, const float* codebook,
                   ExpertWeights& weights) {
  Result<ExpertMatrix> matrix =
      PrepareExpert(file, *record.parts[part], blob, value + record.value_offset[part], codebook);
  if (!matrix) return Fail(matrix.error());
  MatrixOf(weights, static_cast<ExpertPart>(part)) = *matrix;
  return {};
}

}  // namespace mk
