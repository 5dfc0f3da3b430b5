#include "engine/k3/k3_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "engine/arch/logits.h"
#include "engine/k3/forward_pass.h"
#include "engine/k3/spine.h"
#include "engine/kernels/causal_conv.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {
namespace {

ExpertShape ExpertsOf(const K3Shape& shape) {
  ExpertShape experts{shape.experts, shape.routed_width, shape.expert_inner, {}};
  for (const FeedForwardKind kind : shape.feed_forward) {
    experts.in_layer.push_back(kind == FeedForwardKind::kMoe);
  }
  return experts;
}

Status CheckSupported(const MkimFile& file) {
  const uint32_t taps = file.config().kda_conv;
  if (taps >= 2 && taps <= kMaxConvTaps) return {};
  return Fail(ErrorCode::kUnsupported,
              file.path() + ": kda_conv is " + std::to_string(taps) + ", convolutions have 2 to " +
                  std::to_string(kMaxConvTaps) + " taps",
              "only models within this range can be run");
}

}  // namespace

K3Model::K3Model(std::shared_ptr<const MkimFile> mkim)
    : MkimModel(mkim, ExpertsOf(K3Shape(mkim->config())), kSpineVersion),
      shape_(std::make_shared<const K3Shape>(mkim->config())) {}

void K3Model::Describe(ModelInfo& info) const {
  info.vocab = shape_->vocab;
  info.hidden = shape_->hidden;
  for (const AttentionKind kind : shape_->attention) {
    info.layer_kinds.emplace_back(kind == AttentionKind::kKda ? "KDA" : "MLA");
  }
  info.prompt_block = kPrefillBlock;
  info.state_bytes = shape_->kda_layers * shape_->kda_state_floats() * sizeof(float);
  info.bytes_per_token = shape_->mla_layers * shape_->latent_row() * sizeof(float);
}

uint64_t K3Model::state_bytes(size_t tokens) const {
  const uint64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
  return info().state_bytes + pages * kPageTokens * info().bytes_per_token;
}

uint64_t K3Model::draft_bytes(size_t tokens) const {
  return KdaDraft::Bytes(*shape_, std::min(tokens, kMaxDraftTokens));
}

void K3Model::LayOutTables(SpineBuilder& builder) {
  embedding_ = builder.Table("embed_tokens.weight", shape_->vocab, shape_->hidden).data();
}

std::unique_ptr<SpineWeights> K3Model::LayOutSpine(SpineBuilder& builder,
                                                   Precision precision) const {
  return k3::LayOutSpine(builder, *shape_, precision);
}

Result<std::unique_ptr<ModelSequence>> K3Model::MakeSequence(const SequenceOptions& options) const {
  return K3Sequence::Create(this, shape_, options);
}

Status K3Model::Run(const ForwardGroup& group) const {
  ScratchArena& scratch = group.executor.scratch();
  const std::span<BatchItem> items = scratch.Allocate<BatchItem>(group.items.size());
  size_t rows = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    auto* sequence = static_cast<K3Sequence*>(group.items[i].sequence);
    const size_t tokens = group.items[i].tokens.size();
    items[i] = {group.indices[i], sequence, rows, tokens, sequence->length(), group.items[i].draft};
    rows += tokens;
  }
  // Norms, router and activations: measured at 512 channels.
  const uint64_t row_nanoseconds = 200 + 3 * shape_->hidden;
  const Batch batch{
      {group.executor.pool(), scratch, rows, group.observer, group.precision, row_nanoseconds,
       &group.executor.expert_use(), group.experts, ShadowCounts(scratch, group.experts, rows)},
      items};
  ForwardPass pass(*shape_, static_cast<const K3Weights&>(group.weights), embedding_,
                   expert_shape(), experts(), batch);
  if (Status run = pass.RunLayers(group.items); !run) return run;
  TellShadowed<BatchItem>(batch, group.items);
  return pass.WriteLogits(group.items);
}

Status K3Model::RunLens(const LensGroup& group) const {
  const auto& weights = static_cast<const K3Weights&>(group.weights);
  const BatchRows& batch = group.batch;
  const size_t width = shape_->hidden;
  const Activations normed = Activations::NewWide(batch, width);
  Status done = ForRows(batch, batch.rows, [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      RmsNorm(group.streams.subspan(i * width, width), weights.final_norm, shape_->epsilon,
              {normed.row(i), width});
    }
    normed.Seal(begin, end);
  });
  return done ? SendLogits(batch, weights.head, normed, batch.rows, group.sink) : done;
}

Result<std::shared_ptr<const Model>> LoadK3(std::shared_ptr<const MkimFile> file,
                                            const LoadOptions& options) {
  if (Status good = CheckSupported(*file); !good) return Fail(good.error());
  return MkimModel::Load(std::make_shared<K3Model>(std::move(file)), options);
}

Result<ModelFootprint> MeasureK3(std::shared_ptr<const MkimFile> file, size_t sequence_tokens) {
  if (Status good = CheckSupported(*file); !good) return Fail(good.error());
  return std::make_shared<K3Model>(std::move(file))->Measure(sequence_tokens);
}

}  // namespace mk::k3
