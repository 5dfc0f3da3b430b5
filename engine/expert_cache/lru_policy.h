// LruPolicy: the least recently used value goes.

#pragma once

#include "engine/expert_cache/cache_policy.h"

namespace mk {

class LruPolicy final : public CachePolicy {
 public:
  LruPolicy(size_t keys, uint64_t budget) : CachePolicy(keys, budget), order_(links()) {}
  CachePolicyKind kind() const override { return CachePolicyKind::kLru; }

 protected:
  void OnUse(ExpertKey key, bool /*first*/) override {
    order_.Remove(key);
    order_.PushNewest(key);
  }
  void OnInsert(ExpertKey key, FetchReason /*reason*/) override { order_.PushNewest(key); }
  ExpertKey TakeVictim(ExpertKey /*key*/, uint64_t /*bytes*/) override {
    const ExpertKey victim = OldestUnpinned(order_);
    if (victim != kNoKey) order_.Remove(victim);
    return victim;
  }

 private:
  KeyList order_;
};

}  // namespace mk
