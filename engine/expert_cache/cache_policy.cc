#include "engine/expert_cache/cache_policy.h"

#include <array>

#include "engine/expert_cache/aged_policy.h"
#include "engine/expert_cache/arc_policy.h"
#include "engine/expert_cache/lfu_policy.h"
#include "engine/expert_cache/lru_policy.h"

namespace mk {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"lru", "lfu", "arc", "aged"};

}  // namespace

std::string_view CachePolicyName(CachePolicyKind kind) {
  return kNames[static_cast<size_t>(kind)];
}

std::optional<CachePolicyKind> ParseCachePolicy(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<CachePolicyKind>(i);
  }
  return std::nullopt;
}

std::unique_ptr<CachePolicy> CachePolicy::Create(CachePolicyKind kind, size_t keys,
                                                 uint64_t budget) {
  switch (kind) {
    case CachePolicyKind::kLru:
      return std::make_unique<LruPolicy>(keys, budget);
    case CachePolicyKind::kLfu:
      return std::make_unique<LfuPolicy>(keys, budget);
    case CachePolicyKind::kArc:
      return std::make_unique<ArcPolicy>(keys, budget);
    case CachePolicyKind::kAged:
      break;
  }
  return std::make_unique<AgedPolicy>(keys, budget);
}

void CachePolicy::Use(ExpertKey key) {
  const bool first = entries_[key].ahead;
  entries_[key].ahead = false;
  OnUse(key, first);
}

bool CachePolicy::Insert(ExpertKey key, uint64_t bytes, FetchReason reason,
                         std::vector<ExpertKey>& evicted) {
  Entry& entry = entries_[key];
  if (entry.resident) return true;
  if (bytes > budget_) return false;
  OnFetch(key, bytes, reason);
  if (!MakeRoom(key, bytes, evicted)) return false;
  entry.resident = true;
  entry.ahead = reason == FetchReason::kPrefetch;
  entry.bytes = bytes;
  bytes_ += bytes;
  ++count_;
  OnInsert(key, reason);
  return true;
}

void CachePolicy::SetBudget(uint64_t budget, std::vector<ExpertKey>& evicted) {
  budget_ = budget;
  OnSetBudget();
  MakeRoom(kNoKey, 0, evicted);
}

// False: what is left is pinned.
bool CachePolicy::MakeRoom(ExpertKey key, uint64_t bytes, std::vector<ExpertKey>& evicted) {
  while (bytes_ + bytes > budget_) {
    const ExpertKey victim = TakeVictim(key, bytes);
    if (victim == kNoKey) return false;
    entries_[victim].resident = false;
    bytes_ -= entries_[victim].bytes;
    --count_;
    evicted.push_back(victim);
  }
  return true;
}

ExpertKey CachePolicy::OldestUnpinned(const KeyList& list) const {
  ExpertKey key = list.oldest();
  while (key != kNoKey && pinned(key)) key = list.NewerThan(key);
  return key;
}

}  // namespace mk
