#include "engine/expert_cache/arc_policy.h"

#include <algorithm>

namespace mk {

ArcPolicy::ArcPolicy(size_t keys, uint64_t budget)
    : CachePolicy(keys, budget),
      lists_{KeyList(links()), KeyList(links()), KeyList(links()), KeyList(links())},
      where_(keys, kNone),
      sizes_(keys) {}

void ArcPolicy::Put(ExpertKey key, List list, uint64_t bytes) {
  lists_[list].PushNewest(key);
  list_bytes_[list] += bytes;
  sizes_[key] = bytes;
  where_[key] = list;
}

void ArcPolicy::Take(ExpertKey key) {
  const List list = where_[key];
  lists_[list].Remove(key);
  list_bytes_[list] -= sizes_[key];
  where_[key] = kNone;
}

// Drops the oldest of a list of ghosts.
void ArcPolicy::Forget(List ghosts) {
  Take(lists_[ghosts].oldest());
}

// What was fetched ahead is used for the first time: that is not once more.
void ArcPolicy::OnUse(ExpertKey key, bool first) {
  const uint64_t bytes = sizes_[key];
  const List list = first ? where_[key] : kT2;
  Take(key);
  Put(key, list, bytes);
}

void ArcPolicy::AdaptTarget(ExpertKey key, uint64_t bytes) {
  const List from = where_[key];
  Take(key);
  const uint64_t b1 = std::max<uint64_t>(1, list_bytes_[kB1]);
  const uint64_t b2 = std::max<uint64_t>(1, list_bytes_[kB2]);
  if (from == kB1) {
    const uint64_t step = bytes * std::max<uint64_t>(1, list_bytes_[kB2] / b1);
    target_ = std::min(budget(), target_ + step);
  } else {
    const uint64_t step = bytes * std::max<uint64_t>(1, list_bytes_[kB1] / b2);
    target_ -= std::min(target_, step);
  }
  came_from_ = from;
}

void ArcPolicy::OnFetch(ExpertKey key, uint64_t bytes, FetchReason reason) {
  came_from_ = kNone;
  without_ghost_ = false;
  if (where_[key] != kNone) {
    if (reason == FetchReason::kDemand) return AdaptTarget(key, bytes);
    Take(key);  // a guess that it comes back proves nothing
  }
  // A value that nothing is known of: the ghosts make room for its own.
  if (list_bytes_[kT1] + list_bytes_[kB1] + bytes > budget()) {
    without_ghost_ = lists_[kB1].empty();
    while (!lists_[kB1].empty() && list_bytes_[kT1] + list_bytes_[kB1] + bytes > budget()) {
      Forget(kB1);
    }
  } else {
    const auto all = [&] {
      return list_bytes_[kT1] + list_bytes_[kT2] + list_bytes_[kB1] + list_bytes_[kB2];
    };
    while (!lists_[kB2].empty() && all() + bytes > 2 * budget()) Forget(kB2);
  }
}

void ArcPolicy::OnInsert(ExpertKey key, FetchReason /*reason*/) {
  Put(key, came_from_ == kNone ? kT1 : kT2, bytes_of(key));
}

ExpertKey ArcPolicy::Evict(List from, List to) {
  const ExpertKey victim = OldestUnpinned(lists_[from]);
  if (victim == kNoKey) return kNoKey;
  Take(victim);
  if (to != kNone) Put(victim, to, bytes_of(victim));
  return victim;
}

ExpertKey ArcPolicy::TakeVictim(ExpertKey /*key*/, uint64_t /*bytes*/) {
  const uint64_t t1 = list_bytes_[kT1];
  const bool over = t1 > target_ || (came_from_ == kB2 && t1 == target_);
  if (over || without_ghost_) {
    const ExpertKey victim = Evict(kT1, without_ghost_ ? kNone : kB1);
    if (victim != kNoKey) return victim;
  }
  const ExpertKey victim = Evict(kT2, kB2);
  return victim != kNoKey ? victim : Evict(kT1, kB1);
}

// Ghosts are no more than a cache of this size had remembered.
void ArcPolicy::OnSetBudget() {
  came_from_ = kNone;
  without_ghost_ = false;
  target_ = std::min(target_, budget());
  while (!lists_[kB1].empty() && list_bytes_[kB1] > budget()) Forget(kB1);
  while (!lists_[kB2].empty() && list_bytes_[kB2] > budget()) Forget(kB2);
}

}  // namespace mk
