#include "engine/arch/router_lookahead.h"

#include <algorithm>

namespace mk {
namespace {

constexpr size_t kRows = 16;

}  // namespace

RouterLookahead::RouterLookahead(size_t experts, size_t top_k, const BatchRows& batch)
    : experts_(experts),
      top_k_(top_k),
      rows_(std::min(batch.rows, kRows)),
      scores_(batch.scratch.Allocate<float>(rows_ * experts)),
      picks_(batch.scratch.Allocate<int32_t>(top_k)),
      weights_(batch.scratch.Allocate<float>(top_k)),
      wanted_(batch.scratch.Allocate<uint32_t>(rows_ * top_k)) {}

void RouterLookahead::Run(ExpertStore& store, size_t layer, const BatchRows& batch,
                          const Activations& x, const PackedMatrix& router, Route route) const {
  if (!store.WantsPrefetch(PrefetchSource::kLookahead)) return;
  const MatMulJob job = x.Times(router, scores_.data(), experts_, rows_);
  if (!ParallelMatMul(batch.pool, {&job, 1})) return;
  size_t count = 0;
  for (size_t row = 0; row < rows_; ++row) {
    if (!route(scores_.subspan(row * experts_, experts_), picks_, weights_)) continue;
    for (const int32_t pick : picks_) wanted_[count++] = static_cast<uint32_t>(pick);
  }
  store.Prefetch(layer, wanted_.first(count), PrefetchSource::kLookahead);
}

}  // namespace mk
