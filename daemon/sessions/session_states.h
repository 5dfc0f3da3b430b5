// SessionStates: the states of sessions that are in memory, by their state ids.
//
// All of them are on disk as well, so whoever needs the room gets it: what was used longest ago
// goes first, and what nobody used for a while goes by itself. Forks of a session have its state
// under the same id, so they take no room of their own.
//
// A state is charged to the ledger with all that it holds, pages that an older turn or the prefix
// cache holds as well included: those may go first, and the pages stay.
//
// A shelf belongs to a loaded model and goes with it. All is thread-safe, under one lock.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "daemon/ledger.h"
#include "daemon/run_state.h"
#include "engine/model/model.h"

namespace mk::daemon {

class SessionStates;

// The states of one model.
class SessionShelf {
 public:
  explicit SessionShelf(SessionStates& states) : states_(states) {}
  ~SessionShelf();
  SessionShelf(const SessionShelf&) = delete;
  SessionShelf& operator=(const SessionShelf&) = delete;

  // Null: it is not there. The caller keeps the model as long as the state. Its memory stays booked
  // as long as somebody has it.
  std::shared_ptr<const RunState> Find(const std::string& state_id);
  // Keeps it, if there is room.
  void Put(const std::string& state_id, const RunState& state);
  // Makes room for a state of at most so many bytes, which `read` then gives; it is kept where the
  // limit allows that. Errors: kOutOfMemory, those of `read`.
  Result<std::shared_ptr<const RunState>> Read(const std::string& state_id, uint64_t bytes,
                                               const std::function<Result<RunState>()>& read);

 private:
  friend class SessionStates;
  using Time = std::chrono::steady_clock::time_point;
  struct Held {
    Reservation memory;  // under the lock
    RunState state;
  };
  struct Entry {
    std::string state_id;
    std::shared_ptr<Held> held;
    Time used;
  };

  SessionStates& states_;
  std::vector<Entry> entries_;  // under the lock
};

class SessionStates {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Bytes that states may take when the user names no limit: an eighth of the memory budget.
  static uint64_t DefaultLimit(uint64_t budget) { return budget / 8; }

  // The ledger outlives the states, and they their shelves.
  SessionStates(Ledger& ledger, uint64_t limit) : ledger_(ledger), limit_(limit) {}

  // For a model that was loaded.
  std::shared_ptr<SessionShelf> NewShelf();
  // Drops what is beyond the new limit.
  void SetLimit(uint64_t limit);
  // Drops states until so many bytes are free; returns how many that were.
  uint64_t Reclaim(uint64_t bytes);
  // Drops what was last used before.
  void DropUnused(Time before);

  struct Counts {
    uint64_t states = 0;
    uint64_t bytes = 0;
    uint64_t limit = 0;
  };
  Counts counts() const;

 private:
  friend class SessionShelf;

  void Remove(const SessionShelf& shelf);
  uint64_t BytesLocked() const;
  void BookAnew(const std::shared_ptr<SessionShelf::Held>& held);
  bool DropOldest();
  void DropTo(uint64_t most);
  std::optional<Reservation> ReserveLocked(uint64_t bytes);

  Ledger& ledger_;
  mutable std::mutex mutex_;
  // Below: under the lock, as are the entries of all shelves.
  uint64_t limit_;
  std::vector<SessionShelf*> shelves_;
};

}  // namespace mk::daemon
