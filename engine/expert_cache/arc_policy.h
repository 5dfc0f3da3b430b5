// ArcPolicy: Adaptive Replacement Cache (Megiddo and Modha, FAST 2003), counted in bytes.
//
// T1 holds what was used once, T2 what was used again; B1 and B2 remember what went out of them.
// A value that comes back from B1 says that T1 is too small, one from B2 that T2 is: `target_` is
// how large T1 shall be.

#pragma once

#include <array>
#include <vector>

#include "engine/expert_cache/cache_policy.h"

namespace mk {

class ArcPolicy final : public CachePolicy {
 public:
  ArcPolicy(size_t keys, uint64_t budget);
  CachePolicyKind kind() const override { return CachePolicyKind::kArc; }

  // For tests and statistics.
  enum List : uint8_t { kT1, kT2, kB1, kB2, kNone };
  List list_of(ExpertKey key) const { return where_[key]; }
  uint64_t list_bytes(List list) const { return list_bytes_[list]; }
  uint64_t target() const { return target_; }

 protected:
  void OnUse(ExpertKey key, bool first) override;
  void OnFetch(ExpertKey key, uint64_t bytes, FetchReason reason) override;
  void OnInsert(ExpertKey key, FetchReason reason) override;
  ExpertKey TakeVictim(ExpertKey key, uint64_t bytes) override;
  void OnSetBudget() override;

 private:
  void Put(ExpertKey key, List list, uint64_t bytes);
  void Take(ExpertKey key);
  void Forget(List ghosts);
  void AdaptTarget(ExpertKey key, uint64_t bytes);
  ExpertKey Evict(List from, List to);

  std::array<KeyList, 4> lists_;
  std::array<uint64_t, 4> list_bytes_{};
  std::vector<List> where_;      // [keys]
  std::vector<uint64_t> sizes_;  // [keys], of keys in lists
  uint64_t target_ = 0;          // bytes of T1
  // Of the value that is being fetched.
  List came_from_ = kNone;
  bool without_ghost_ = false;
};

}  // namespace mk
