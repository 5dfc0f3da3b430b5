#include "daemon/expert_counter.h"

#include <span>

namespace mk::daemon {

ExpertCounter::ExpertCounter(const ModelInfo& info)
    : layers_(info.layers),
      experts_(info.experts),
      top_k_(info.top_k),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(info.layers * info.experts)) {}

void ExpertCounter::Add(size_t layer, std::span<const int32_t> experts) {
  if (layer >= layers_) return;
  for (const int32_t expert : experts) {
    if (expert < 0 || static_cast<size_t>(expert) >= experts_) continue;
    counts_[layer * experts_ + static_cast<size_t>(expert)].fetch_add(1, std::memory_order_relaxed);
  }
}

protocol::ExpertTally ExpertCounter::Tally(bool take) const {
  protocol::ExpertTally tally;
  tally.layers = static_cast<uint32_t>(layers_);
  tally.experts = static_cast<uint32_t>(experts_);
  tally.top_k = static_cast<uint32_t>(top_k_);
  for (size_t layer = 0; layer < layers_; ++layer) {
    protocol::ExpertCounts counts;
    counts.layer = static_cast<uint32_t>(layer);
    uint64_t picks = 0;
    for (size_t expert = 0; expert < experts_; ++expert) {
      std::atomic<uint64_t>& cell = counts_[layer * experts_ + expert];
      const uint64_t count =
          take ? cell.exchange(0, std::memory_order_relaxed) : cell.load(std::memory_order_relaxed);
      if (count == 0) continue;
      counts.experts.push_back(static_cast<int32_t>(expert));
      counts.counts.push_back(count);
      picks += count;
    }
    if (picks == 0) continue;
    // Every layer that routes sees every token.
    if (tally.counts.empty()) tally.tokens = picks / top_k_;
    tally.counts.push_back(std::move(counts));
  }
  return tally;
}

void RunExpertCounter::OnRouter(size_t, size_t position, size_t layer,
                                std::span<const int32_t> experts, std::span<const float>) {
  picks_.push_back({position, layer, experts_.size(), experts.size()});
  experts_.insert(experts_.end(), experts.begin(), experts.end());
}

void RunExpertCounter::Begin() {
  picks_.clear();
  experts_.clear();
}

void RunExpertCounter::Keep(size_t end) {
  for (const Pick& pick : picks_) {
    if (pick.position >= end) continue;
    const auto experts = std::span(experts_).subspan(pick.first, pick.count);
    counter_.Add(pick.layer, experts);
    if (all_) all_->Add(pick.layer, experts);
  }
  Begin();
}

}  // namespace mk::daemon
