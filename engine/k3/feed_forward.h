// Feed-forward parts: dense SiTU layers and the mixture of experts.
//
//   dense:  y = W_down situ(W_gate x, W_up x)
//   MoE:    h = W_routed_down x
//           r = W_routed_up rms( sum_{e selected} w_e W2_e situ(W1_e h, W3_e h) )
//           y = r + S_down situ(S_gate x, S_up x)
//
// The contributions of a token's experts are summed in the order of its selection.

#pragma once

#include <cstddef>

#include "engine/arch/routed_experts.h"
#include "engine/arch/router_lookahead.h"
#include "engine/base/result.h"
#include "engine/experts/expert_store.h"
#include "engine/k3/batch.h"
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
  MoeScratch(const K3Shape& shape, const ExpertShape& expert_shape, const Batch& batch);
  float* input;              // [rows][moe_input_rows]
  Activations routed;        // [rows][m]: h, a part of input
  Activations shared_inner;  // [rows][s]
  float* shared;             // [rows][d]
  Activations mixed;         // [rows][m]: weighted sum of the experts
  RoutedExperts experts;
  RouterLookahead lookahead;
};

// As DenseForward. `next`: of the next layer with experts, for a guess of what it will pick, or
// null. kNumeric for router logits that are not finite; errors of the store.
Status MoeForward(const K3Shape& shape, const MoeWeights& weights, const MoeWeights* next,
                  size_t layer, ExpertStore& store, const Batch& batch, const MoeScratch& scratch,
                  const Activations& x, float* y);

}  // namespace mk::k3
