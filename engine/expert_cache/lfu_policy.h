// LfuPolicy: the value with the fewest uses since it came goes, the least recently used of equals.
// Counts do not age: after a change of topic what was much used stays. For comparisons.

#pragma once

#include <map>
#include <vector>

#include "engine/expert_cache/cache_policy.h"

namespace mk {

class LfuPolicy final : public CachePolicy {
 public:
  LfuPolicy(size_t keys, uint64_t budget) : CachePolicy(keys, budget), uses_(keys) {}
  CachePolicyKind kind() const override { return CachePolicyKind::kLfu; }

 protected:
  void OnUse(ExpertKey key, bool first) override;
  void OnInsert(ExpertKey key, FetchReason reason) override;
  ExpertKey TakeVictim(ExpertKey key, uint64_t bytes) override;

 private:
  void Add(ExpertKey key);
  void Remove(ExpertKey key);

  std::vector<uint64_t> uses_;            // of residents, the one they came for included
  std::map<uint64_t, KeyList> of_count_;  // by uses, fewest first; no list is empty
};

}  // namespace mk
