#include "engine/generate/shadow_draft.h"

#include <algorithm>
#include <utility>

namespace mk {

ShadowDraft::ShadowDraft(size_t longest) : longest_(longest), next_(std::min<size_t>(longest, 4)) {
  stats_.drafted_at.resize(longest);
  stats_.accepted_at.resize(longest);
}

ForwardItem ShadowDraft::Next(const Sequence& sequence, std::span<const int32_t> emitted,
                              size_t room, std::span<float> logits) {
  ForwardItem item;
  running_ = false;
  if (ended_ || tokens_.size() >= std::min(room, next_)) return item;
  if (!twin_) {
    Result<std::unique_ptr<Sequence>> copy = sequence.Clone();
    if (!copy) {
      // Without memory for a copy the run goes on as a plain one.
      ended_ = true;
      return item;
    }
    twin_ = std::move(*copy);
  }
  fed_ = tokens_.empty() ? emitted.back() : tokens_.back();
  item.sequence = twin_.get();
  item.tokens = {&fed_, 1};
  item.wanted = LogitsWanted::kLast;
  item.logits = logits;
  item.experts = ExpertAccess::kShadow;
  running_ = true;
  return item;
}

void ShadowDraft::Accept(Sampler& sampler, uint64_t draws, std::span<const int32_t> emitted,
                         std::span<const float> logits, std::span<const int32_t> stop_ids) {
  running_ = false;
  text_.assign(emitted.begin(), emitted.end());
  text_.insert(text_.end(), tokens_.begin(), tokens_.end());
  Result<Picked> picked = sampler.Pick(logits, draws + tokens_.size(), text_);
  // Shadows may give what the experts would not; and nothing comes after a stop token.
  ended_ = !picked || std::find(stop_ids.begin(), stop_ids.end(), picked->id) != stop_ids.end();
  if (!ended_) tokens_.push_back(picked->id);
}

std::vector<int32_t> ShadowDraft::Take() {
  twin_.reset();
  ended_ = false;
  return std::exchange(tokens_, {});
}

void ShadowDraft::Verified(size_t drafted, size_t accepted, bool bonus, double seconds) {
  if (drafted == 0) {
    ++stats_.singles;
    return;
  }
  ++stats_.passes;
  stats_.drafted += drafted;
  stats_.accepted += accepted;
  if (bonus) ++stats_.bonus;
  stats_.rollback_seconds += seconds;
  for (size_t i = 0; i < drafted; ++i) {
    ++stats_.drafted_at[i];
    if (i < accepted) ++stats_.accepted_at[i];
  }
  next_ = std::min(longest_, accepted + 2);
}

}  // namespace mk
