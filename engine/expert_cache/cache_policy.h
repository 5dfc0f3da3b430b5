// CachePolicy: which experts of a model stay in a cache of limited bytes.
//
// A policy keeps books only: it says what is resident and what has to go; the values are its
// caller's. The same classes serve a model that runs and the replay of a recorded trace. All
// choices are deterministic: equal histories give equal victims.
//
// One thread at a time.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/expert_cache/key_list.h"

namespace mk {

enum class CachePolicyKind : uint8_t {
  kLru,   // least recently used
  kLfu,   // fewest uses since it came, the oldest among equals; counts do not age
  kArc,   // Megiddo and Modha 2003, in bytes
  kAged,  // W-TinyLFU (Einziger, Friedman, Manes 2017): use counts that age, behind a small window
};
// "lru", "lfu", "arc", "aged".
std::string_view CachePolicyName(CachePolicyKind kind);
std::optional<CachePolicyKind> ParseCachePolicy(std::string_view name);

// Why a value was fetched.
enum class FetchReason : uint8_t {
  kDemand,
  // Predicted. It teaches the policy nothing until it is used.
  kPrefetch,
};

class CachePolicy {
 public:
  // For keys below `keys`, and a budget in bytes.
  static std::unique_ptr<CachePolicy> Create(CachePolicyKind kind, size_t keys, uint64_t budget);

  virtual ~CachePolicy() = default;
  CachePolicy(const CachePolicy&) = delete;
  CachePolicy& operator=(const CachePolicy&) = delete;

  virtual CachePolicyKind kind() const = 0;
  bool resident(ExpertKey key) const { return entries_[key].resident; }
  uint64_t bytes() const { return bytes_; }  // of all residents
  uint64_t budget() const { return budget_; }
  size_t count() const { return count_; }  // of residents

  // A resident value is used. The use for which a value was fetched on demand is no second one: a
  // caller that inserts first and uses afterwards leaves that one out.
  void Use(ExpertKey key);
  // A fetched value of so many bytes (at least 1); for one that is resident nothing changes. What
  // has to go is appended to `evicted` and is not resident any more. False: it is not kept, because
  // it is larger than the budget or than what is not pinned.
  bool Insert(ExpertKey key, uint64_t bytes, FetchReason reason, std::vector<ExpertKey>& evicted);
  // A pinned value stays whatever comes. Pins are counted.
  void Pin(ExpertKey key) { ++entries_[key].pins; }
  void Unpin(ExpertKey key) { --entries_[key].pins; }
  // Another budget from now on; what is pinned may stay above it.
  void SetBudget(uint64_t budget, std::vector<ExpertKey>& evicted);

 protected:
  CachePolicy(size_t keys, uint64_t budget) : entries_(keys), links_(keys), budget_(budget) {}

  // `first`: of a value that was fetched ahead.
  virtual void OnUse(ExpertKey key, bool first) = 0;
  // Before room is made for it: what a history of evicted values has to say.
  virtual void OnFetch(ExpertKey /*key*/, uint64_t /*bytes*/, FetchReason /*reason*/) {}
  // Puts a key, which is resident from now on, into the policy's order.
  virtual void OnInsert(ExpertKey key, FetchReason reason) = 0;
  // The resident to go next, taken out of the policy's order; kNoKey: all are pinned. Room is made
  // for so many bytes of `key`, or of nothing (kNoKey).
  virtual ExpertKey TakeVictim(ExpertKey key, uint64_t bytes) = 0;
  virtual void OnSetBudget() {}

  KeyTable& links() { return links_; }
  uint64_t bytes_of(ExpertKey key) const { return entries_[key].bytes; }
  bool pinned(ExpertKey key) const { return entries_[key].pins > 0; }
  // The oldest of a list that is not pinned; kNoKey: none.
  ExpertKey OldestUnpinned(const KeyList& list) const;

 private:
  struct Entry {
    uint64_t bytes = 0;  // kept after an eviction, for histories
    uint32_t pins = 0;
    bool resident = false;
    bool ahead = false;  // fetched ahead, and not used yet
  };

  bool MakeRoom(ExpertKey key, uint64_t bytes, std::vector<ExpertKey>& evicted);

  std::vector<Entry> entries_;
  KeyTable links_;
  uint64_t budget_;
  uint64_t bytes_ = 0;
  size_t count_ = 0;
};

}  // namespace mk
