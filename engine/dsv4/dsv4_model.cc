#include "engine/dsv4/dsv4_model.h"

#include <algorithm>
#include <utility>

#include "engine/arch/logits.h"
#include "engine/dsv4/forward_pass.h"
#include "engine/dsv4/spine.h"

namespace mk::dsv4 {
namespace {

ExpertShape ExpertsOf(const Dsv4Shape& shape) {
  return {shape.experts, shape.hidden, shape.expert_inner, std::vector<bool>(shape.layers, true)};
}

}  // namespace

Dsv4Model::Dsv4Model(std::shared_ptr<const MkimFile> mkim)
    : MkimModel(mkim, ExpertsOf(Dsv4Shape(mkim->config())), kSpineVersion),
      shape_(std::make_shared<const Dsv4Shape>(mkim->config())) {}

void Dsv4Model::Describe(ModelInfo& info) const {
  info.vocab = shape_->vocab;
  info.hidden = shape_->hidden;
  info.streams = shape_->streams;
  for (size_t layer = 0; layer < shape_->layers; ++layer) {
    const bool compressed = shape_->ratio[layer] != 0;
    info.layer_kinds.emplace_back(!compressed ? "SWA" : shape_->indexed(layer) ? "CSA" : "HCA");
  }
  info.max_tokens = shape_->max_tokens;
  info.state_bytes = shape_->ring_bytes();
  info.bytes_per_token = shape_->bytes_per_token();
}

uint64_t Dsv4Model::state_bytes(size_t tokens) const {
  uint64_t bytes = shape_->ring_bytes();
  for (const RatioClass& c : shape_->classes) {
    const uint64_t pages = (tokens / c.ratio + kPageRows - 1) / kPageRows;
    bytes += pages * c.layers * shape_->page_layer_bytes(c.indexed);
  }
  return bytes;
}

uint64_t Dsv4Model::draft_bytes(size_t tokens) const {
  return DraftBytes(*shape_, tokens);
}

void Dsv4Model::LayOutTables(SpineBuilder& builder) {
  dsv4::LayOutTables(builder, *shape_, tables_);
}

std::unique_ptr<SpineWeights> Dsv4Model::LayOutSpine(SpineBuilder& builder,
                                                     Precision precision) const {
  return dsv4::LayOutSpine(builder, *shape_, precision);
}

Result<std::unique_ptr<ModelSequence>> Dsv4Model::MakeSequence(
    const SequenceOptions& options) const {
  SequenceOptions limited = options;
  if (shape_->max_tokens > 0) {
    limited.max_tokens = std::min(limited.max_tokens, shape_->max_tokens);
  }
  return Dsv4Sequence::Create(this, shape_, limited);
}

Status Dsv4Model::Run(const ForwardGroup& group) const {
  ScratchArena& scratch = group.executor.scratch();
  const std::span<BatchItem> items = scratch.Allocate<BatchItem>(group.items.size());
  size_t rows = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    auto* sequence = static_cast<Dsv4Sequence*>(group.items[i].sequence);
    const size_t tokens = group.items[i].tokens.size();
    items[i] = {group.indices[i], sequence, rows, tokens, sequence->length(), group.items[i].draft};
    rows += tokens;
  }
  // Of norms, mixers and activations: measured at 512 channels.
  const uint64_t row_nanoseconds = 1000 + 6 * shape_->hidden;
  const Batch batch{
      {group.executor.pool(), scratch, rows, group.observer, group.precision, row_nanoseconds,
       &group.executor.expert_use(), group.experts, ShadowCounts(scratch, group.experts, rows)},
      items};
  ForwardPass pass(*shape_, static_cast<const Dsv4Weights&>(group.weights), tables_, expert_shape(),
                   experts(), batch);
  if (Status run = pass.RunLayers(group.items); !run) return run;
  TellShadowed<BatchItem>(batch, group.items);
  return pass.WriteLogits(group.items);
}

Status Dsv4Model::RunLens(const LensGroup& group) const {
  const auto& weights = static_cast<const Dsv4Weights&>(group.weights);
  const Activations normed = Activations::NewWide(group.batch, shape_->hidden);
  Status read = ReadForHead(*shape_, weights, group.batch, group.streams, normed);
  if (!read) return read;
  return SendLogits(group.batch, weights.head, normed, group.batch.rows, group.sink);
}

Result<std::shared_ptr<const Model>> LoadDsv4(std::shared_ptr<const MkimFile> file,
                                              const LoadOptions& options) {
  return MkimModel::Load(std::make_shared<Dsv4Model>(std::move(file)), options);
}

Result<ModelFootprint> MeasureDsv4(std::shared_ptr<const MkimFile> file, size_t sequence_tokens) {
  return std::make_shared<Dsv4Model>(std::move(file))->Measure(sequence_tokens);
}

}  // namespace mk::dsv4
