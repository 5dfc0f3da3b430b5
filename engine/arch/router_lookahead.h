// RouterLookahead: asks the router of a later layer now, on the input of this layer.
//
// Its true input does not exist yet, but the residual stream changes little from layer to layer:
// most of what the router picks then is among what it picks now. A guess for a store that has to
// read its experts from a disk; it has no part in any result.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/arch/batch.h"
#include "engine/experts/expert_store.h"
#include "engine/kernels/matmul.h"
#include "engine/parallel/function_ref.h"

namespace mk {

class RouterLookahead {
 public:
  // Scratch for the first rows of a batch: a long prompt asks for all experts anyway.
  RouterLookahead(size_t experts, size_t top_k, const BatchRows& batch);

  // Scores [E], replaced at will, to picks and weights [top_k]; false when there are none.
  using Route = FunctionRef<bool(std::span<float>, std::span<int32_t>, std::span<float>)>;

  // Has the store prefetch what the router of `layer`, [E][hidden], picks on x. Does nothing for a
  // store that does not want it.
  void Run(ExpertStore& store, size_t layer, const BatchRows& batch, const Activations& x,
           const PackedMatrix& router, Route route) const;

 private:
  const size_t experts_;
  const size_t top_k_;
  const size_t rows_;
  std::span<float> scores_;     // [rows][E]
  std::span<int32_t> picks_;    // [top_k]
  std::span<float> weights_;    // [top_k]
  std::span<uint32_t> wanted_;  // [rows][top_k]
};

}  // namespace mk
