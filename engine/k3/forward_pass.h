// ForwardPass: one walk of a batch through all layers.

#pragma once

#include <span>

#include "engine/base/result.h"
#include "engine/experts/expert_arena.h"
#include "engine/experts/expert_store.h"
#include "engine/k3/batch.h"
#include "engine/k3/feed_forward.h"
#include "engine/k3/kda_layer.h"
#include "engine/k3/mla_layer.h"
#include "engine/k3/residual.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"
#include "engine/model/model.h"

namespace mk::k3 {

class ForwardPass {
 public:
  // `embedding`: [V][d]. Takes its scratch from the batch's arena, which throws std::bad_alloc when
  // memory runs out.
  ForwardPass(const K3Shape& shape, const K3Weights& weights, const float* embedding,
              const ExpertShape& expert_shape, ExpertStore& experts, const Batch& batch);

  // Embeds the items' tokens and runs every layer. kNumeric with the layer, errors of the store.
  Status RunLayers(std::span<const ForwardItem> items);
  // The head for the rows that the items want, after RunLayers. kNumeric.
  Status WriteLogits(std::span<ForwardItem> items);

 private:
  void Embed(std::span<const ForwardItem> items);
  Status RunLayer(size_t layer);
  Status Attention(size_t layer, float* out);
  Status FeedForward(size_t layer, float* out);
  using Hook = void (ForwardObserver::*)(size_t, size_t, size_t, std::span<const float>);
  void Report(Hook hook, size_t layer, const float* rows) const;
  Status ReportOutput() const;

  const K3Shape& shape_;
  const K3Weights& weights_;
  const float* const embedding_;
  ExpertStore& experts_;
  const Batch& batch_;
  Residual residual_;
  KdaScratch kda_;
  MlaScratch mla_;
  DenseScratch dense_;
  MoeScratch moe_;
  Activations normed_;  // [rows][d]: input of a part
};

}  // namespace mk::k3
