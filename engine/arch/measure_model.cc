// What a model would need, counted by the code that lays out its weights when it is loaded.

#include <algorithm>

#include "engine/arch/mkim_model.h"
#include "engine/experts/resident_experts.h"
#include "engine/stream/streamed_experts.h"

namespace mk {
namespace {

// Blocks of reads past the page cache, and what may lie between the parts of an expert that are
// read at once.
constexpr uint64_t kBlock = 4096;
constexpr uint64_t kLargestHole = 8192;

struct OnDisk {
  uint64_t bytes = 0;
  uint64_t read_bytes = 0;
};

OnDisk FindExpert(const MkimFile& file, uint32_t layer, uint32_t expert) {
  OnDisk found;
  uint64_t blocks = 0;  // of every part by itself
  uint64_t first = UINT64_MAX;
  uint64_t end = 0;
  for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kDown, ExpertPart::kUp}) {
    const TensorEntry* entry = file.Expert(layer, expert, part);
    if (entry == nullptr) return {};
    const uint64_t last = entry->offset + entry->size;
    found.bytes += entry->size;
    blocks += (last + kBlock - 1) / kBlock - entry->offset / kBlock;
    first = std::min(first, entry->offset);
    end = std::max(end, last);
  }
  if (end - first <= found.bytes + kLargestHole) {
    blocks = (end + kBlock - 1) / kBlock - first / kBlock;
  }
  found.read_bytes = blocks * kBlock;
  return found;
}

}  // namespace

size_t ModelFootprint::moe_layers() const {
  size_t layers = 0;
  for (size_t l = 0; l < info.layers; ++l) {
    const auto first = expert_sizes.begin() + static_cast<std::ptrdiff_t>(l * info.experts);
    if (std::any_of(first, first + static_cast<std::ptrdiff_t>(info.experts),
                    [](uint64_t size) { return size > 0; })) {
      ++layers;
    }
  }
  return layers;
}

Result<ModelFootprint> MkimModel::Measure(size_t sequence_tokens) {
  DescribeHeader();
  ModelFootprint footprint;
  Result<uint64_t> tables = MeasureTables();
  if (!tables) return Fail(tables.error());
  footprint.table_bytes = *tables;
  Result<uint64_t> experts = ResidentExperts::Measure(*file_, expert_shape_);
  if (!experts) return Fail(experts.error());
  footprint.expert_bytes = *experts;
  Result<TokenWork> of_experts = ExpertWork();
  if (!of_experts) return Fail(of_experts.error());
  footprint.expert_multiply_adds = of_experts->multiply_adds;
  for (size_t p = 0; p < kPrecisions; ++p) {
    SpineBuilder builder(*file_, nullptr);
    const std::unique_ptr<SpineWeights> weights = LayOutSpine(builder, static_cast<Precision>(p));
    Result<SpinePlan> plan = builder.Finish();
    if (!plan) return Fail(plan.error());
    footprint.precisions[p] = {plan->bytes, TotalWork(*weights, *of_experts)};
  }
  footprint.spine_file_bytes = file_->resources().spine_file_bytes;
  footprint.expert_file_bytes = file_->resources().expert_bytes;
  for (size_t i = 0; i < info_.layers * info_.experts; ++i) {
    const OnDisk expert = FindExpert(*file_, static_cast<uint32_t>(i / info_.experts),
                                     static_cast<uint32_t>(i % info_.experts));
    footprint.expert_sizes.push_back(expert.bytes);
    footprint.expert_read_bytes.push_back(expert.read_bytes);
  }
  Result<ExpertTable> table = ExpertTable::Create(*file_, expert_shape_);
  if (!table) return Fail(table.error());
  footprint.stream_table_bytes = StreamedExperts::TableBytes(*table);
  footprint.smallest_stream_budget = StreamedExperts::SmallestBudget(*table, info_.top_k);
  footprint.sequence_tokens = sequence_tokens;
  footprint.sequence_bytes = state_bytes(sequence_tokens);
  // Every pick has an input, two inner rows and an output (RoutedExperts); a dozen rows of the
  // width of the streams are in use at once.
  const uint64_t picks = uint64_t{kMaxForwardTokens} * info_.top_k;
  footprint.scratch_bytes = (picks * 2 * (expert_shape_.width + expert_shape_.inner) +
                             uint64_t{kMaxForwardTokens} * 12 * info_.streams * info_.hidden) *
                            sizeof(float);
  footprint.info = info_;
  return footprint;
}

}  // namespace mk
