// Feed-forward parts: dense SiTU layers and the mixture of experts.
//
//   dense:  y = W_down situ(W_gate x, W_up x)
//   MoE:    h = W_routed_down x
//           r = W_routed_up rms( sum_{e selected} w_e W2_e situ(W1_e h, W3_e h) )
//           y = r + S_down situ(S_gate x, S_up x)
//
// Tokens of the whole batch are grouped by expert, so that an expert is read once per forward; the
// contributions of a token are summed in the order of its selection, so grouping leaves no trace.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/k3/batch.h"
#include "engine/k3/expert_store.h"
#include "engine/k3/shape.h"
#include "engine/k3/weights.h"

namespace mk::k3 {

struct DenseScratch {
  DenseScratch(const K3Shape& shape, const Batch& batch);
  float* input;       // [rows][2 D_f]
  Activations inner;  // [rows][D_f]
};

// x [rows][d], normalised, to y [rows][d].
Status DenseForward(const K3Shape& shape, const DenseWeights& weights, const Batch& batch,
                    const DenseScratch& scratch, const Activations& x, float* y);

struct MoeScratch {
  MoeScratch(const K3Shape& shape, const Batch& batch);
  float* input;              // [rows][moe_input_rows]
  Activations routed;        // [rows][m]: h, a part of input
  Activations shared_inner;  // [rows][s]
  float* shared;             // [rows][d]
  Activations mixed;         // [rows][m]: weighted sum of the experts
  std::span<int32_t> picks;  // [rows][k], best first
  std::span<float> weights;  // [rows][k]
  // One slot per (row, pick), slots of one expert next to each other.
  std::span<uint32_t> slots;         // [rows][k]: slot of a pick
  std::span<uint32_t> count;         // [E]: picks of an expert, zero between layers
  std::span<uint32_t> first;         // [E + 1]: first slot of an active expert, then the end
  std::span<uint32_t> active;        // [E]: experts with slots, ascending
  std::span<ExpertWeights> experts;  // [E]: of the active ones
  std::span<ExpertJob> jobs;         // [2 E]: gates and ups
  std::span<ExpertJob> down_jobs;    // [E]
  Activations latent;                // [rows k][m]: inputs by slot
  Activations gate;                  // [rows k][i], then the activation
  float* up;                         // [rows k][i]
  float* output;                     // [rows k][m]
};

// As DenseForward. kNumeric for router logits that are not finite; errors of the store.
Status MoeForward(const K3Shape& shape, const MoeWeights& weights, size_t layer, ExpertStore& store,
                  const Batch& batch, const MoeScratch& scratch, const Activations& x, float* y);

}  // namespace mk::k3
