#include "engine/sampling/token_penalties.h"

#include <algorithm>

namespace mk {

TokenPenalties::TokenPenalties(const PenaltyOptions& options, std::span<const int32_t> prompt)
    : options_(options) {
  if (!options_.prompt) return;
  // What has left the window never comes back but by tokens that are taken back.
  if (options_.window > 0) prompt = prompt.last(std::min<size_t>(prompt.size(), options_.window));
  for (const int32_t id : prompt) Push(id);
  fixed_ = prompt.size();
}

void TokenPenalties::Count(int32_t id, int change) {
  const auto found = counts_.try_emplace(id, 0).first;
  found->second += change;
  if (found->second == 0) counts_.erase(found);
}

void TokenPenalties::Push(int32_t id) {
  tokens_.push_back(id);
  Count(id, 1);
  const size_t window = options_.window;
  if (window > 0 && tokens_.size() > window) Count(tokens_[tokens_.size() - 1 - window], -1);
}

void TokenPenalties::Pop() {
  const size_t window = options_.window;
  if (window > 0 && tokens_.size() > window) Count(tokens_[tokens_.size() - 1 - window], 1);
  Count(tokens_.back(), -1);
  tokens_.pop_back();
}

void TokenPenalties::Follow(std::span<const int32_t> emitted) {
  const auto known = std::span<const int32_t>(tokens_).subspan(fixed_);
  const auto parted = std::mismatch(known.begin(), known.end(), emitted.begin(), emitted.end());
  const auto common = static_cast<size_t>(parted.first - known.begin());
  while (tokens_.size() > fixed_ + common) Pop();
  for (const int32_t id : emitted.subspan(common)) Push(id);
}

void TokenPenalties::Apply(std::span<const int32_t> emitted, std::span<float> logits) {
  Follow(emitted);
  for (const auto& [id, count] : counts_) {
    if (static_cast<size_t>(id) >= logits.size()) continue;  // stands for one that nobody knows
    float& l = logits[static_cast<size_t>(id)];
    l = l > 0.0f ? l / options_.repetition : l * options_.repetition;
    l -= options_.frequency * static_cast<float>(count);
    l -= options_.presence;
  }
}

}  // namespace mk
