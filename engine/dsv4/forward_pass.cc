#include "engine/dsv4/forward_pass.h"

#include <algorithm>
#include <string>

#include "engine/arch/logits.h"

namespace mk::dsv4 {
namespace {

Status NonFinite(size_t layer) {
  return Fail(ErrorCode::kNumeric, "non-finite hidden state, layer " + std::to_string(layer),
              "the weights of the model or the state of the sequence are damaged");
}

}  // namespace

ForwardPass::ForwardPass(const Dsv4Shape& shape, const Dsv4Weights& weights,
                         const Dsv4Tables& tables, const ExpertShape& expert_shape,
                         ExpertStore& experts, const Batch& batch)
    : shape_(shape),
      weights_(weights),
      tables_(tables),
      experts_(experts),
      batch_(batch),
      tokens_(batch.scratch.Allocate<int32_t>(batch.rows)),
      streams_(shape, batch),
      attention_(shape, batch),
      moe_(shape, expert_shape, batch),
      normed_(Activations::NewWide(batch, shape.hidden)),
      output_(batch.scratch.Allocate<float>(batch.rows * shape.hidden).data()) {}

void ForwardPass::Embed(std::span<const ForwardItem> items) {
  size_t row = 0;
  for (const ForwardItem& item : items) {
    for (const int32_t token : item.tokens) {
      const float* from = tables_.embedding + static_cast<size_t>(token) * shape_.hidden;
      float* to = streams_.row(row).data();
      for (size_t j = 0; j < shape_.streams; ++j) to = std::copy_n(from, shape_.hidden, to);
      tokens_[row++] = token;
    }
  }
}

// The experts of hash layers follow from the tokens alone.
void ForwardPass::PrefetchHashed() {
  if (!experts_.WantsPrefetch(PrefetchSource::kTable)) return;
  const size_t k = shape_.top_k;
  const std::span<uint32_t> picks = batch_.scratch.Allocate<uint32_t>(batch_.rows * k);
  for (size_t layer = 0; layer < tables_.hash.size(); ++layer) {
    for (size_t row = 0; row < batch_.rows; ++row) {
      const auto from = tables_.hash[layer].subspan(static_cast<size_t>(tokens_[row]) * k, k);
      std::copy(from.begin(), from.end(), picks.begin() + static_cast<std::ptrdiff_t>(row * k));
    }
    std::sort(picks.begin(), picks.end());
    const auto end = std::unique(picks.begin(), picks.end());
    experts_.Prefetch(layer, picks.first(static_cast<size_t>(end - picks.begin())),
                      PrefetchSource::kTable);
  }
}

void ForwardPass::Report(Hook hook, size_t layer, const float* rows, size_t width) const {
  if (batch_.observer == nullptr) return;
  for (const BatchItem& item : batch_.items) {
    (batch_.observer->*hook)(item.index, item.position, layer,
                             {rows + item.first_row * width, item.tokens * width});
  }
}

Status ForwardPass::RunLayer(size_t layer) {
  const LayerWeights& w = weights_.layers[layer];
  Result<bool> finite = streams_.Read(batch_, w.attention_mixer, w.attention_norm, normed_);
  if (!finite) return Fail(finite.error());
  if (!*finite) return NonFinite(layer == 0 ? 0 : layer - 1);
  Status attended =
      AttentionForward(shape_, w.attention, layer, batch_, attention_, normed_, output_);
  if (!attended) return attended;
  Report(&ForwardObserver::OnAttention, layer, output_, shape_.hidden);
  if (Status written = streams_.Write(batch_, output_); !written) return written;

  finite = streams_.Read(batch_, w.ffn_mixer, w.ffn_norm, normed_);
  if (!finite) return Fail(finite.error());
  if (!*finite) return NonFinite(layer);
  const std::span<const int32_t> table =
      layer < tables_.hash.size() ? tables_.hash[layer] : std::span<const int32_t>();
  const bool guess = layer + 1 < shape_.layers && layer + 1 >= tables_.hash.size();
  const MoeWeights* const next = guess ? &weights_.layers[layer + 1].moe : nullptr;
  Status fed = MoeForward(shape_, w.moe, next, layer, table, tokens_, experts_, batch_, moe_,
                          normed_, output_);
  if (!fed) return fed;
  Report(&ForwardObserver::OnFeedForward, layer, output_, shape_.hidden);
  if (Status written = streams_.Write(batch_, output_); !written) return written;
  Report(&ForwardObserver::OnHidden, layer, streams_.values(), shape_.stream_floats());
  return {};
}

Status ForwardPass::RunLayers(std::span<const ForwardItem> items) {
  Embed(items);
  PrefetchHashed();
  if (Status done = attention_.rotations.Compute(batch_); !done) return done;
  for (size_t layer = 0; layer < shape_.layers; ++layer) {
    if (Status done = RunLayer(layer); !done) return done;
  }
  Result<bool> finite = streams_.Finite(batch_);
  if (!finite) return Fail(finite.error());
  if (!*finite) return NonFinite(shape_.layers - 1);
  return OutputWanted<BatchItem>(batch_) ? ReportOutput() : Status();
}

Status ForwardPass::ReportOutput() const {
  float* const mixed = batch_.scratch.Allocate<float>(batch_.rows * shape_.hidden).data();
  Status done = streams_.MixForHead(batch_, weights_, mixed);
  if (done) SendOutput<BatchItem>(batch_, mixed, shape_.hidden);
  return done;
}

Status ForwardPass::WriteLogits(std::span<ForwardItem> items) {
  const WantedRows wanted(batch_.scratch, batch_.rows, items, shape_.vocab);
  if (Status read = streams_.ReadForHead(batch_, weights_, wanted.rows, normed_); !read) {
    return read;
  }
  return mk::WriteLogits(batch_, weights_.head, normed_, wanted);
}

}  // namespace mk::dsv4
