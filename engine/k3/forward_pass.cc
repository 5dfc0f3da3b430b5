#include "engine/k3/forward_pass.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {
namespace {

// Rows of logits made at a time when they cannot go straight to the caller; bounds the scratch.
constexpr size_t kLogitRows = 64;

Status NonFinite(size_t layer) {
  return Fail(ErrorCode::kNumeric, "non-finite hidden state, layer " + std::to_string(layer),
              "the weights of the model or the state of the sequence are damaged");
}

size_t RowsWanted(const ForwardItem& item) {
  switch (item.wanted) {
    case LogitsWanted::kNone:
      return 0;
    case LogitsWanted::kLast:
      return 1;
    case LogitsWanted::kAll:
      break;
  }
  return item.tokens.size();
}

}  // namespace

ForwardPass::ForwardPass(const K3Shape& shape, const K3Weights& weights, const float* embedding,
                         ExpertStore& experts, const Batch& batch)
    : shape_(shape),
      weights_(weights),
      embedding_(embedding),
      experts_(experts),
      batch_(batch),
      residual_(shape, batch),
      kda_(shape, batch),
      mla_(shape, batch),
      dense_(shape, batch),
      moe_(shape, batch),
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
  return MoeForward(shape_, w.moe, layer, experts_, batch_, moe_, normed_, out);
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
  return {};
}

Status ForwardPass::WriteLogits(std::span<ForwardItem> items) {
  const size_t vocab = shape_.vocab;
  // Rows wanted and where their logits belong.
  const std::span<size_t> rows = batch_.scratch.Allocate<size_t>(batch_.rows);
  const std::span<float*> targets = batch_.scratch.Allocate<float*>(batch_.rows);
  size_t count = 0;
  bool one_span = true;  // the logits of all rows follow each other in memory
  for (size_t i = 0; i < items.size(); ++i) {
    const size_t wanted = RowsWanted(items[i]);
    const size_t end = batch_.items[i].first_row + batch_.items[i].tokens;
    for (size_t r = 0; r < wanted; ++r) {
      rows[count] = end - wanted + r;
      targets[count] = items[i].logits.data() + r * vocab;
      if (count > 0 && targets[count] != targets[count - 1] + vocab) one_span = false;
      ++count;
    }
  }
  if (count == 0) return {};
  Status mixed = residual_.MixRows(batch_, rows.first(count), weights_.output_mix,
                                   weights_.final_norm, normed_);
  if (!mixed) return mixed;
  const size_t step = one_span ? count : std::min(count, kLogitRows);
  float* const buffer = one_span ? targets[0] : batch_.scratch.Allocate<float>(step * vocab).data();
  for (size_t first = 0; first < count; first += step) {
    const size_t n = std::min(step, count - first);
    const MatMulJob head = normed_.From(first).Times(weights_.head, buffer, vocab, n);
    if (Status done = ParallelMatMul(batch_.pool, {&head, 1}); !done) return done;
    for (size_t r = 0; r < n; ++r) {
      const std::span<const float> row(buffer + r * vocab, vocab);
      if (!std::isfinite(Sum(row))) {
        return Fail(ErrorCode::kNumeric, "non-finite logits",
                    "the head of the model is damaged; check the file");
      }
      if (!one_span) std::copy(row.begin(), row.end(), targets[first + r]);
    }
  }
  return {};
}

}  // namespace mk::k3
