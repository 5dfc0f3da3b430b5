// The prefix cache: what the beginnings of prompts left behind, for prompts that begin alike.
//
// A run leaves the state of its sequence at the end of its prompt (with the logits there), at the
// last place before it where a longer prompt may go on, and where its prompt parts from one that
// was seen before: what many prompts share is found by the third at the latest. A later run starts
// from a copy of the longest stored beginning of its own prompt. Its bits are those of a run that
// reads everything: a state is only used where reading would have come to the same one (see
// Usable).
//
// States are charged to the ledger, and given back when somebody else needs the room. What is
// used often and lately stays; the least useful one goes first.
//
// A shelf belongs to a loaded model and goes with it. All is thread-safe, under one lock.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "daemon/ledger.h"
#include "engine/model/model.h"

namespace mk::daemon {

class PrefixCache;

// Arithmetics differ in their states.
struct PrefixKind {
  Precision precision = Precision::kExact;
  bool chunked_prefill = true;
  bool operator==(const PrefixKind&) const = default;
};

// Whether a state after the first `length` tokens of a prompt is the one that reading the first
// `prompt_length` tokens comes by: it does not lie inside a block that would be read as a whole.
// `block`: 1, or ModelInfo::prompt_block with chunked prefill.
inline bool Usable(size_t length, size_t prompt_length, size_t block) {
  return length <= prompt_length &&
         (length % block == 0 || length / block == prompt_length / block);
}

// The states of one model.
class PrefixShelf {
 public:
  struct Found {
    std::unique_ptr<Sequence> state;  // a copy; null: nothing of use
    size_t tokens = 0;                // that it has read
    std::vector<float> logits;        // after them, when they are the whole prompt
    size_t shared = 0;  // tokens that the prompt has in common with any stored one, at most
  };

  PrefixShelf(PrefixCache& cache, const ModelInfo& info)
      : cache_(cache), prompt_block_(info.prompt_block) {}
  ~PrefixShelf();
  PrefixShelf(const PrefixShelf&) = delete;
  PrefixShelf& operator=(const PrefixShelf&) = delete;

  Found Find(const PrefixKind& kind, std::span<const int32_t> prompt);
  // Keeps a copy of `state`, which has read `tokens` and nothing else. `logits`: after the last
  // one, or empty. That there is no room is no error: nothing is kept then.
  void Store(const PrefixKind& kind, std::span<const int32_t> tokens, const Sequence& state,
             std::span<const float> logits);
  // Where a prompt is to be stored, ascending: positions beyond `known`, multiples of kPrefillBlock
  // but for the last, which is the prompt's end. `shared`: see Found.
  std::vector<size_t> Marks(const PrefixKind& kind, size_t known, size_t shared,
                            size_t prompt_length) const;

 private:
  friend class PrefixCache;
  struct Entry {
    PrefixKind kind;
    std::vector<int32_t> tokens;
    std::unique_ptr<Sequence> state;
    std::vector<float> logits;
    Reservation memory;
    uint64_t last_used = 0;  // PrefixCache::clock_
    double hits = 0;         // halved with every kHalfLife lookups
  };

  size_t BlockOf(const PrefixKind& kind) const { return kind.chunked_prefill ? prompt_block_ : 1; }

  PrefixCache& cache_;
  const size_t prompt_block_;
  std::vector<Entry> entries_;
};

class PrefixCache {
 public:
  // Bytes that states may take when the user names no limit: an eighth of the memory budget.
  static uint64_t DefaultLimit(uint64_t budget) { return budget / 8; }

  // The ledger outlives the cache, and the cache its shelves. `limit` in bytes; 0: nothing is kept.
  PrefixCache(Ledger& ledger, uint64_t limit) : ledger_(ledger), limit_(limit) {}

  // For a model that was loaded.
  std::shared_ptr<PrefixShelf> NewShelf(const ModelInfo& info);
  // Forgets what is beyond the new limit.
  void SetLimit(uint64_t limit);
  // Forgets states until so many bytes are free; returns how many that were, less when there were
  // no more.
  uint64_t Reclaim(uint64_t bytes);

  struct Counts {
    uint64_t states = 0;
    uint64_t bytes = 0;
    uint64_t limit = 0;
    uint64_t lookups = 0;
    uint64_t hits = 0;     // lookups that found a state
    uint64_t evicted = 0;  // states that had to go
  };
  Counts counts() const;

 private:
  friend class PrefixShelf;

  void Remove(const PrefixShelf& shelf);
  bool EvictOne();
  std::optional<Reservation> ReserveLocked(uint64_t bytes);
  double ValueOf(const PrefixShelf::Entry& entry) const;

  Ledger& ledger_;
  mutable std::mutex mutex_;
  // Below: under the lock, as are the entries of all shelves.
  uint64_t limit_;
  uint64_t bytes_ = 0;
  uint64_t clock_ = 0;  // lookups and stores so far
  uint64_t lookups_ = 0;
  uint64_t hits_ = 0;
  uint64_t evicted_ = 0;
  std::vector<PrefixShelf*> shelves_;
};

}  // namespace mk::daemon
