// AgedPolicy: W-TinyLFU (Einziger, Friedman, Manes, ACM TOS 2017), counted in bytes.
//
// What comes goes into a small window. What leaves the window is kept only if it was used more
// often than what would have to go for it; what is used again in the main part is protected. Uses
// are counted for all experts, resident or not, and halved from time to time, so that a returning
// expert is recognised and an old topic is forgotten. As the experts of a model are few, every one
// has a counter of its own, where the paper has a sketch.

#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/expert_cache/cache_policy.h"

namespace mk {

class AgedPolicy final : public CachePolicy {
 public:
  AgedPolicy(size_t keys, uint64_t budget);
  CachePolicyKind kind() const override { return CachePolicyKind::kAged; }

 protected:
  void OnUse(ExpertKey key, bool first) override;
  void OnFetch(ExpertKey key, uint64_t bytes, FetchReason reason) override;
  void OnInsert(ExpertKey key, FetchReason reason) override;
  ExpertKey TakeVictim(ExpertKey key, uint64_t bytes) override;

 private:
  enum Segment : uint8_t { kWindow, kProbation, kProtected };

  uint64_t window_budget() const;
  uint64_t protected_budget() const;
  void Put(ExpertKey key, Segment segment);
  void Take(ExpertKey key);
  void Move(ExpertKey key, Segment segment);
  void Count(ExpertKey key);
  ExpertKey MainVictim() const;
  void ShrinkProtected();

  std::array<KeyList, 3> segments_;
  std::array<uint64_t, 3> segment_bytes_{};
  std::vector<Segment> where_;   // [keys], of residents
  std::vector<uint8_t> counts_;  // [keys]
  uint64_t counted_ = 0;         // since counts were halved
};

}  // namespace mk
