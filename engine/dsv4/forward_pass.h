// ForwardPass: one walk of a batch through all layers.

#pragma once

#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/dsv4/attention_layer.h"
#include "engine/dsv4/batch.h"
#include "engine/dsv4/mixer.h"
#include "engine/dsv4/moe_layer.h"
#include "engine/dsv4/shape.h"
#include "engine/dsv4/weights.h"
#include "engine/experts/expert_arena.h"
#include "engine/experts/expert_store.h"
#include "engine/model/model.h"

namespace mk::dsv4 {

class ForwardPass {
 public:
  // Takes its scratch from the batch's arena, which throws std::bad_alloc when memory runs out.
  ForwardPass(const Dsv4Shape& shape, const Dsv4Weights& weights, const Dsv4Tables& tables,
              const ExpertShape& expert_shape, ExpertStore& experts, const Batch& batch);

  // Embeds the items' tokens and runs every layer. kNumeric with the layer, errors of the store.
  Status RunLayers(std::span<const ForwardItem> items);
  // The head for the rows that the items want, after RunLayers. kNumeric.
  Status WriteLogits(std::span<ForwardItem> items);

 private:
  void Embed(std::span<const ForwardItem> items);
  void PrefetchHashed();
  Status RunLayer(size_t layer);
  using Hook = void (ForwardObserver::*)(size_t, size_t, size_t, std::span<const float>);
  void Report(Hook hook, size_t layer, const float* rows, size_t width) const;
  Status ReportOutput() const;

  const Dsv4Shape& shape_;
  const Dsv4Weights& weights_;
  const Dsv4Tables& tables_;
  ExpertStore& experts_;
  const Batch& batch_;
  std::span<int32_t> tokens_;  // [rows]
  Streams streams_;
  AttentionScratch attention_;
  MoeScratch moe_;
  Activations normed_;  // [rows][d]: input of a part
  float* output_;       // [rows][d]: what it gives
};

}  // namespace mk::dsv4
