#include "engine/expert_cache/lfu_policy.h"

namespace mk {

void LfuPolicy::OnUse(ExpertKey key, bool first) {
  Remove(key);
  if (!first) ++uses_[key];
  Add(key);
}

void LfuPolicy::OnInsert(ExpertKey key, FetchReason /*reason*/) {
  uses_[key] = 1;
  Add(key);
}

ExpertKey LfuPolicy::TakeVictim(ExpertKey /*key*/, uint64_t /*bytes*/) {
  for (const auto& [uses, list] : of_count_) {
    const ExpertKey victim = OldestUnpinned(list);
    if (victim == kNoKey) continue;
    Remove(victim);
    return victim;
  }
  return kNoKey;
}

void LfuPolicy::Add(ExpertKey key) {
  of_count_.try_emplace(uses_[key], links()).first->second.PushNewest(key);
}

void LfuPolicy::Remove(ExpertKey key) {
  const auto list = of_count_.find(uses_[key]);
  list->second.Remove(key);
  if (list->second.empty()) of_count_.erase(list);
}

}  // namespace mk
