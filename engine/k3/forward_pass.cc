#include "engine/k3/forward_pass.h"

#include <algorithm>
#include <string>

#include "engine/arch/logits.h"

namespace mk::k3 {
namespace {

Status NonFinite(size_t layer) {
  return Fail(ErrorCode::kNumeric, "non-finite hidden state, layer " + std::to_string(layer),
              "the weights of the model or the state of the sequence are damaged");
}

}  // namespace

ForwardPass::ForwardPass(const K3Shape& shape, const K3Weights& weights, const float* embedding,
                         const ExpertShape& expert_shape, ExpertStore& experts, const Batch& batch)
    : shape_(shape),
      weights_(weights),
      embedding_(embedding),
      experts_(experts),
      batch_(batch),
      residual_(shape, batch),
      kda_(shape, batch),
      mla_(shape, batch),
      dense_(shape, batch),
      moe_(shape, expert_shape, batch),
      normed_(Activations::NewWide(batch, shape.hidden)) {}

void ForwardPass::Embed(std::span<const ForwardItem> items) {
  float* out = residual_.partial();
  for (const ForwardItem& item : items) {
    for (const int32_t token : item.tokens) {
      const float* row = embedding_ + static_cast<size_t>(token) * shape_.hidden;
      out = std::copy_n(row, shape_.hidden, out);
    }
  }
}

void ForwardPass::Report(Hook hook, size_t layer, const float* rows) const {
  if (batch_.observer == nullptr) return;
  for (const BatchItem& item : batch_.items) {
    (batch_.observer->*hook)(item.index, item.position, layer,
                             {rows + item.first_row * shape_.hidden, item.tokens * shape_.hidden});
  }
}

Status ForwardPass::Attention(size_t layer, float* out) {
  const LayerWeights& w = weights_.layers[layer];
  const size_t index = shape_.attention_index[layer];
  if (shape_.attention[layer] == AttentionKind::kKda) {
    return KdaForward(shape_, w.kda, index, batch_, kda_, normed_, out);
  }
  return MlaForward(shape_, w.mla, index, batch_, mla_, normed_, out);
}

Status ForwardPass::FeedForward(size_t layer, float* out) {
  const LayerWeights& w = weights_.layers[layer];
  if (shape_.feed_forward[layer] == FeedForwardKind::kDense) {
    return DenseForward(shape_, w.dense, batch_, dense_, normed_, out);
  }
  const bool more =
      layer + 1 < shape_.layers && shape_.feed_forward[layer + 1] == FeedForwardKind::kMoe;
  const MoeWeights* const next = more ? &weights_.layers[layer + 1].moe : nullptr;
  return MoeForward(shape_, w.moe, next, layer, experts_, batch_, moe_, normed_, out);
}

Status ForwardPass::RunLayer(size_t layer) {
  const LayerWeights& w = weights_.layers[layer];
  Result<bool> finite = residual_.MixAndNorm(batch_, w.attention_mix, w.input_norm, normed_);
  if (!finite) return Fail(finite.error());
  if (!*finite) return NonFinite(layer == 0 ? 0 : layer - 1);
  if (layer > 0) Report(&ForwardObserver::OnHidden, layer - 1, residual_.partial());
  if (layer % shape_.residual_block == 0) residual_.CloseBlock();

  float* attention = residual_.NextOutput();
  if (Status done = Attention(layer, attention); !done) return done;
  Report(&ForwardObserver::OnAttention, layer, attention);

  finite = residual_.MixAndNorm(batch_, w.mlp_mix, w.post_norm, normed_);
  if (!finite) return Fail(finite.error());
  if (!*finite) return NonFinite(layer);
  float* feed_forward = residual_.NextOutput();
  if (Status done = FeedForward(layer, feed_forward); !done) return done;
  Report(&ForwardObserver::OnFeedForward, layer, feed_forward);
  return {};
}

Status ForwardPass::RunLayers(std::span<const ForwardItem> items) {
  Embed(items);
  for (size_t layer = 0; layer < shape_.layers; ++layer) {
    if (Status done = RunLayer(layer); !done) return done;
  }
  Result<bool> finite = residual_.Settle(batch_);
  if (!finite) return Fail(finite.error());
  if (!*finite) return NonFinite(shape_.layers - 1);
  Report(&ForwardObserver::OnHidden, shape_.layers - 1, residual_.partial());
  return OutputWanted<BatchItem>(batch_) ? ReportOutput() : Status();
}

Status ForwardPass::ReportOutput() const {
  float* const mixed = batch_.scratch.Allocate<float>(batch_.rows * shape_.hidden).data();
  Status done = residual_.MixAll(batch_, weights_.output_mix, mixed);
  if (done) SendOutput<BatchItem>(batch_, mixed, shape_.hidden);
  return done;
}

Status ForwardPass::WriteLogits(std::span<ForwardItem> items) {
  const WantedRows wanted(batch_.scratch, batch_.rows, items, shape_.vocab);
  Status mixed =
      residual_.MixRows(batch_, wanted.rows, weights_.output_mix, weights_.final_norm, normed_);
  if (!mixed) return mixed;
  return mk::WriteLogits(batch_, weights_.head, normed_, wanted);
}

}  // namespace mk::k3
