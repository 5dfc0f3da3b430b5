// StreamedExperts: routed experts that stay in the file, with a cache of limited bytes.
//
// A demand that is not in the cache is read at once; demands of a layer are read together, so that
// neighbours in the file share a read, and each expert is handed out as soon as it has come. What
// is predicted is read when no demand waits. Every expert is read once, however many ask for it
// while it is on its way. What is requested is pinned until it is released.
//
// The results of a model do not depend on any of this: only when bytes arrive does.

#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/expert_cache/cache_policy.h"
#include "engine/experts/expert_store.h"
#include "engine/model/stream_options.h"
#include "engine/replay/markov_predictor.h"
#include "engine/stream/block_pool.h"
#include "engine/stream/expert_fetcher.h"
#include "engine/stream/expert_table.h"
#include "engine/stream/prefetch_account.h"

namespace mk {

class StreamedExperts final : public ExpertStore, private FetchOwner {
 public:
  // Memory that a store with this budget needs at least: what one token needs in a layer, and the
  // reads that bring it.
  static uint64_t SmallestBudget(const ExpertTable& table, size_t top_k);
  // The budget with which all experts stay in memory.
  static uint64_t LargestBudget(const ExpertTable& table);
  // What a budget leaves for experts when the buffers of reads are taken off it; `largest_record`:
  // bytes of the largest expert in the file.
  static uint64_t CacheBytes(uint64_t largest_record, uint64_t budget);
  // Memory beside the budget: tables of all experts.
  static uint64_t TableBytes(const ExpertTable& table);

  // `codebook`: of VQ1 experts, or null; it outlives the store. `reader`: what reads the file; by
  // default what the options call for. kOutOfMemory when the budget is below the smallest, kIo.
  static Result<std::unique_ptr<StreamedExperts>> Create(
      std::shared_ptr<const MkimFile> file, ExpertTable table, size_t top_k, const float* codebook,
      const StreamOptions& options, std::unique_ptr<DiskReader> reader = nullptr);
  // Before the first use. Their memory is beside the budget.
  void SetShadows(std::unique_ptr<ExpertShadows> shadows) { shadows_ = std::move(shadows); }
  // Why there are none, for StreamStats.
  void SetShadowError(std::string error) { stats_.shadow_error = std::move(error); }
  ~StreamedExperts() override;

  bool WantsPrefetch(PrefetchSource source) const override;
  void Prefetch(size_t layer, std::span<const uint32_t> experts, PrefetchSource source) override;
  void Request(size_t layer, std::span<const uint32_t> experts) override;
  Result<size_t> Acquire(size_t layer, std::span<uint32_t> pending,
                         std::span<ExpertWeights> out) override;
  Status AcquireNow(size_t layer, std::span<const uint32_t> experts,
                    std::span<ExpertWeights> out) override;
  void Release(size_t layer, std::span<const uint32_t> experts) override;
  uint64_t resident_bytes() const override;

  StreamStats Stats() const;
  // The experts in memory, the one used most often since it came first.
  std::vector<ExpertKey> Hot() const;
  // Has experts read when nothing else is to be read, as far as they fit.
  void Warm(std::span<const ExpertKey> keys);
  // Another budget from now on; what has to go goes at once. kOutOfMemory below the smallest.
  Status SetBudget(uint64_t budget);

 private:
  // In the order in which they are read.
  // kRefill: what shadows served.
  enum ReadClass : uint8_t { kDemand, kTable, kDraft, kRefill, kLookahead, kHistory, kWarm };
  static constexpr size_t kReadClasses = 7;
  enum class Phase : uint8_t {
    kAbsent,
    kQueued,  // to be read
    kReading,
    kResident,  // in the cache
    kPassing,   // in memory as long as somebody has requested it
  };
  // Which sum the bytes of an expert are in.
  enum class Charge : uint8_t {
    kNone,
    kWanted,   // requested, and in memory or on its way
    kGuessed,  // predicted and on its way
  };
  struct Entry {
    Phase phase = Phase::kAbsent;
    ReadClass read_class = kDemand;  // of kQueued and kReading
    Charge charge = Charge::kNone;
    std::optional<PrefetchSource> source;  // that has it fetched, until the first demand
    uint32_t wanted = 0;                   // requests that are not released
    uint32_t value = 0;                    // index in values_, of kResident and kPassing
    uint32_t uses = 0;                     // demands since it came
  };

  StreamedExperts(std::shared_ptr<const MkimFile> file, ExpertTable table, size_t top_k,
                  const StreamOptions& options);

  // Of FetchOwner, on the thread of the fetcher.
  void NextReads(uint64_t bytes, std::vector<ExpertKey>& keys) override;
  Result<std::byte*> TakeMemory(ExpertKey key) override;
  void Landed(ExpertKey key, const ExpertValue& value, const Status& status) override;

  // With mutex_ held.
  static ReadClass ClassOf(PrefetchSource source);
  void Demand(ExpertKey key);
  void Queue(ExpertKey key, ReadClass read_class);
  void Refill(ExpertKey key);
  void DropQueued(size_t layer);
  void TakeQueued(ReadClass read_class, uint64_t& room, std::vector<ExpertKey>& keys);
  bool MayRead(ReadClass read_class, ExpertKey key);
  void SetCharge(ExpertKey key, Charge charge);
  void CountPass(size_t layer);
  void ObserveMarkov(size_t layer, std::span<const uint32_t> experts);
  void PrefetchKey(ExpertKey key, PrefetchSource source);
  PrefetchAccount& AccountOf(PrefetchSource source) {
    return accounts_[static_cast<size_t>(source)];
  }
  void Keep(ExpertKey key, const ExpertValue& value);
  void Forget(ExpertKey key);
  void LoseRead(ExpertKey key, const ExpertValue& value, const Error& error);
  void ForgetEvicted();
  uint64_t BytesOf(ExpertKey key) const { return table_[key].value_bytes; }
  bool InMemory(const Entry& entry) const {
    return entry.phase == Phase::kResident || entry.phase == Phase::kPassing;
  }

  const std::shared_ptr<const MkimFile> file_;
  const ExpertTable table_;
  const size_t top_k_;
  const StreamOptions options_;
  uint64_t budget_;
  bool uring_ = false;
  std::unique_ptr<ExpertShadows> shadows_;  // may be null

  mutable std::mutex mutex_;
  std::condition_variable landed_;
  std::unique_ptr<CachePolicy> policy_;
  std::vector<Entry> entries_;  // [keys]
  std::vector<ExpertValue> values_;
  std::vector<uint32_t> free_values_;
  BlockPool memory_;
  std::array<std::deque<ExpertKey>, kReadClasses> queues_;  // stale where the entry says otherwise
  std::unordered_map<ExpertKey, Error> failures_;           // of requested experts
  uint64_t wanted_bytes_ = 0;                               // of Charge::kWanted
  uint64_t guessed_bytes_ = 0;                              // of Charge::kGuessed
  bool queued_ = false;     // something that the fetcher was not told of
  bool held_back_ = false;  // demands wait for releases
  uint64_t pass_ = 0;
  size_t last_layer_ = 0;
  std::array<PrefetchAccount, kPrefetchSources> accounts_;
  std::optional<MarkovPredictor> markov_;
  std::vector<ExpertKey> predicted_;
  std::vector<ExpertKey> evicted_;
  StreamStats stats_;

  std::unique_ptr<ExpertFetcher> fetcher_;  // ends first
};

}  // namespace mk
