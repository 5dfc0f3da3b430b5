#include "engine/expert_cache/aged_policy.h"

#include <algorithm>

namespace mk {
namespace {

constexpr uint64_t kWindowShare = 50;       // of the budget: 2 %
constexpr uint64_t kProtectedPercent = 80;  // of the rest
// Four bits, as in the paper: more would only take longer to forget.
constexpr uint8_t kMaxCount = 15;
// Uses per resident after which counts are halved.
constexpr uint64_t kUsesPerResident = 10;

}  // namespace

AgedPolicy::AgedPolicy(size_t keys, uint64_t budget)
    : CachePolicy(keys, budget),
      segments_{KeyList(links()), KeyList(links()), KeyList(links())},
      where_(keys, kWindow),
      counts_(keys) {}

uint64_t AgedPolicy::window_budget() const {
  return budget() / kWindowShare;
}

uint64_t AgedPolicy::protected_budget() const {
  const uint64_t rest = budget() - window_budget();
  return rest / 100 * kProtectedPercent + rest % 100 * kProtectedPercent / 100;
}

void AgedPolicy::Put(ExpertKey key, Segment segment) {
  segments_[segment].PushNewest(key);
  segment_bytes_[segment] += bytes_of(key);
  where_[key] = segment;
}

void AgedPolicy::Take(ExpertKey key) {
  const Segment segment = where_[key];
  segments_[segment].Remove(key);
  segment_bytes_[segment] -= bytes_of(key);
}

void AgedPolicy::Move(ExpertKey key, Segment segment) {
  Take(key);
  Put(key, segment);
}

void AgedPolicy::Count(ExpertKey key) {
  if (counts_[key] < kMaxCount) ++counts_[key];
  if (++counted_ < kUsesPerResident * std::max<uint64_t>(1, count())) return;
  counted_ = 0;
  for (uint8_t& count : counts_) count /= 2;
}

void AgedPolicy::OnUse(ExpertKey key, bool first) {
  Count(key);
  const bool promoted = !first && where_[key] == kProbation;
  Move(key, promoted ? kProtected : where_[key]);
  if (promoted) ShrinkProtected();
}

void AgedPolicy::OnFetch(ExpertKey key, uint64_t /*bytes*/, FetchReason reason) {
  if (reason == FetchReason::kDemand) Count(key);
}

// The newest stays in the window, however large it is.
void AgedPolicy::OnInsert(ExpertKey key, FetchReason /*reason*/) {
  Put(key, kWindow);
  while (segment_bytes_[kWindow] > window_budget() && segments_[kWindow].oldest() != key) {
    Move(segments_[kWindow].oldest(), kProbation);
  }
}

void AgedPolicy::ShrinkProtected() {
  while (segment_bytes_[kProtected] > protected_budget() &&
         segments_[kProtected].oldest() != segments_[kProtected].newest()) {
    Move(segments_[kProtected].oldest(), kProbation);
  }
}

ExpertKey AgedPolicy::MainVictim() const {
  const ExpertKey victim = OldestUnpinned(segments_[kProbation]);
  return victim != kNoKey ? victim : OldestUnpinned(segments_[kProtected]);
}

ExpertKey AgedPolicy::TakeVictim(ExpertKey key, uint64_t bytes) {
  const ExpertKey candidate = OldestUnpinned(segments_[kWindow]);
  ExpertKey victim = MainVictim();
  const bool full = key == kNoKey || segment_bytes_[kWindow] + bytes > window_budget();
  if (candidate != kNoKey && (victim == kNoKey || full)) {
    if (victim != kNoKey && counts_[candidate] > counts_[victim]) {
      Move(candidate, kProbation);
    } else {
      victim = candidate;
    }
  }
  if (victim != kNoKey) Take(victim);
  return victim;
}

}  // namespace mk
