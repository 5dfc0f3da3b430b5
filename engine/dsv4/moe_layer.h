// The mixture of experts of a layer. With b the normalised input:
//
//   expert e of weight g:  W2_e ( g silu(min(W1_e b, lim)) * clamp(W3_e b, -lim, lim) )
//   y = sum over the picks, in their order, plus the shared expert with g = 1

#pragma once

#include <cstdint>
#include <span>

#include "engine/arch/routed_experts.h"
#include "engine/arch/router_lookahead.h"
#include "engine/base/result.h"
#include "engine/dsv4/batch.h"
#include "engine/dsv4/shape.h"
#include "engine/dsv4/weights.h"
#include "engine/experts/expert_store.h"

namespace mk::dsv4 {

struct MoeScratch {
  MoeScratch(const Dsv4Shape& shape, const ExpertShape& expert_shape, const Batch& batch);
  float* logits;             // [rows][E]
  float* shared_input;       // [rows][2 F]
  Activations shared_inner;  // [rows][F]
  RoutedExperts experts;
  RouterLookahead lookahead;
};

// x [rows][d], normalised, to y [rows][d]. `tokens` [rows]; `table` [V][k] in hash layers, else
// empty. `next`: of the next layer, for a guess of what it will pick, or null where that has a
// table or is none. kNumeric for router logits that are not finite; errors of the store.
Status MoeForward(const Dsv4Shape& shape, const MoeWeights& weights, const MoeWeights* next,
                  size_t layer, std::span<const int32_t> table, std::span<const int32_t> tokens,
                  ExpertStore& store, const Batch& batch, const MoeScratch& scratch,
                  const Activations& x, float* y);

}  // namespace mk::dsv4
