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
// used often and lately stays; the least useful one goes first. Memory that several states share
// (a state and one that goes on from it) is charged once: forgetting a state frees what no other
// one holds. Memory that a run shares with a state is charged to both, because the run may end, or
// the state may go, at any time.
//
// What has proved useful is also kept on disk (PrefixDisk), and what is about to go for lack of
// room while it still has some value; so are the most valuable states when a model is unloaded and
// when the daemon leaves. All of it is written in the background. What only the disk has is brought
// into memory before its run is given to the scheduler (Fetch), on a thread that may wait: a lookup
// at the start of a run never reads a file.
//
// A shelf belongs to a loaded model and goes with it. All is thread-safe, under one lock that is
// not held while files are read or written.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/ledger.h"
#include "daemon/prefix_disk.h"
#include "daemon/prefix_kind.h"
#include "daemon/prefix_readers.h"
#include "engine/model/model.h"
#include "engine/model/state.h"

namespace mk::daemon {

class PrefixCache;

// The states of one model.
class PrefixShelf : public std::enable_shared_from_this<PrefixShelf> {
 public:
  struct Found {
    std::unique_ptr<Sequence> state;  // a copy; null: nothing of use
    size_t tokens = 0;                // that it has read
    std::vector<float> logits;        // after them, when they are the whole prompt
    size_t shared = 0;  // tokens that the prompt has in common with any stored one, at most
  };
  // A state as it is shown.
  struct Listed {
    PrefixKind kind;
    size_t tokens = 0;
    bool logits = false;
    uint64_t bytes = 0;      // of all that it holds
    uint64_t own_bytes = 0;  // that forgetting it would free
    double value = 0;
    PrefixDisk::FileRef file;  // null: it is in memory only
  };

  PrefixShelf(PrefixCache& cache, std::shared_ptr<const Model> model);
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

  // Whether anything is kept at all.
  bool keeps() const;
  // Of the scheduler's thread.
  PrefixReaders& readers() { return readers_; }

  // Whether the disk has a beginning of the prompt that is worth reading. Looks at no file.
  bool WantsFetch(const PrefixKind& kind, std::span<const int32_t> prompt) const;
  // Brings that beginning into memory. Reads a file: not on the threads of the scheduler and of
  // I/O.
  void Fetch(const PrefixKind& kind, std::span<const int32_t> prompt);

 private:
  friend class PrefixCache;
  struct Entry {
    PrefixKind kind;
    std::vector<int32_t> tokens;
    std::unique_ptr<Sequence> state;
    std::vector<float> logits;
    std::vector<StatePage> pages;  // of the state
    uint64_t last_used = 0;        // PrefixCache::clock_
    double hits = 0;               // halved with every kHalfLife uses of the cache
    bool fetched = false;          // for a run that has not looked for it yet
    bool queued = false;           // to be written
    bool writing = false;
    PrefixDisk::FileRef file;  // null: none

    size_t extra_bytes() const { return tokens.size() * 4 + logits.size() * 4; }
  };

  size_t BlockOf(const PrefixKind& kind) const;
  Entry* FindLocked(const PrefixKind& kind, std::span<const int32_t> tokens);
  PrefixDisk::FileRef WorthFetching(const PrefixKind& kind, std::span<const int32_t> prompt) const;
  void InsertLocked(Entry entry);
  void QueueWriteLocked(Entry& entry);
  bool IsWrittenLocked(const Entry& entry) const;
  bool WantsWriteLocked(const Entry& entry) const;
  void Write(const PrefixKind& kind, std::span<const int32_t> tokens);
  std::vector<Entry> TakeValuableLocked();

  PrefixCache& cache_;
  const std::shared_ptr<const Model> model_;  // goes after the entries
  const StateKeeper* keeper_ = nullptr;       // null: the model tells nothing of its states
  std::vector<Entry> entries_;
  PrefixReaders readers_;
};

class PrefixCache {
 public:
  // Bytes that states may take when the user names no limit: an eighth of the memory budget.
  static uint64_t DefaultLimit(uint64_t budget) { return budget / 8; }

  // The ledger and the disk outlive the cache, and the cache its shelves. `limit` in bytes; 0:
  // nothing is kept. `disk` may be null.
  PrefixCache(Ledger& ledger, uint64_t limit, PrefixDisk* disk = nullptr)
      : ledger_(ledger), disk_(disk), limit_(limit) {}
  // Stops the disk: what runs on its threads may hold the last handle of a shelf.
  ~PrefixCache() {
    if (disk_ != nullptr) disk_->Stop();
  }

  // For a model that was loaded. Reads which prompts the disk knows: it takes time.
  std::shared_ptr<PrefixShelf> NewShelf(std::shared_ptr<const Model> model);
  // Forgets what is beyond the new limit.
  void SetLimit(uint64_t limit);
  // Forgets states until so many bytes are free; returns how many that were, less when there were
  // no more.
  uint64_t Reclaim(uint64_t bytes);
  // Writes to disk what is worth it and not there yet, in the background, the most valuable first.
  void SaveValuable();

  struct Forgotten {
    uint64_t states = 0;
    uint64_t bytes = 0;
  };
  // Forgets the states of some models.
  Forgotten Forget(const std::function<bool(const ModelInfo&)>& of);

  struct Counts {
    uint64_t states = 0;
    uint64_t bytes = 0;
    uint64_t limit = 0;
    uint64_t lookups = 0;
    uint64_t hits = 0;       // lookups that found a state
    uint64_t disk_hits = 0;  // of them, states that had been fetched from disk for them
    uint64_t evicted = 0;    // states that had to go
  };
  Counts counts() const;
  PrefixDisk* disk() const { return disk_; }

  struct ShelfList {
    std::string model;  // path
    std::string fingerprint;
    std::vector<PrefixShelf::Listed> states;
  };
  std::vector<ShelfList> List() const;

 private:
  friend class PrefixShelf;
  // Memory that one or more states lie in.
  struct HeldPage {
    uint64_t bytes = 0;
    size_t holders = 0;
    bool charged = false;
  };

  // Uses of the cache in which the hits of a state lose half of their weight.
  static constexpr double kHalfLife = 64;
  // A state of less value is not written to disk when it goes: it has not been used, and half of
  // its time is over.
  static constexpr double kLeastWritten = 0.5;
  static double Decay(uint64_t age);

  // Counts a state among the holders of its pages; the bytes of those that are not charged yet.
  uint64_t HoldLocked(const std::vector<StatePage>& pages);
  void LetGoLocked(const std::vector<StatePage>& pages);
  void ChargeLocked(const std::vector<StatePage>& pages, Reservation memory);
  uint64_t OwnBytesLocked(const PrefixShelf::Entry& entry) const;
  void ForgetLocked(PrefixShelf& shelf, size_t index);
  bool EvictOne();
  std::optional<Reservation> ReserveLocked(uint64_t bytes);
  double ValueOf(const PrefixShelf::Entry& entry) const;
  void WriteBehindLocked();

  Ledger& ledger_;
  PrefixDisk* const disk_;
  mutable std::mutex mutex_;
  // Below: under the lock, as are the entries of all shelves.
  uint64_t limit_;
  Reservation memory_;  // of all states together
  std::unordered_map<const void*, HeldPage> pages_;
  uint64_t clock_ = 0;  // lookups and stores so far
  uint64_t lookups_ = 0;
  uint64_t hits_ = 0;
  uint64_t disk_hits_ = 0;
  uint64_t evicted_ = 0;
  std::vector<PrefixShelf*> shelves_;
};

}  // namespace mk::daemon
