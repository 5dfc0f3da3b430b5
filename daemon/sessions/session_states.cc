#include "daemon/sessions/session_states.h"

#include <algorithm>
#include <utility>

namespace mk::daemon {
namespace {

uint64_t CostOf(const RunState& state) {
  return state.sequence->state_bytes() + state.tokens.size() * sizeof(int32_t) +
         state.logits.size() * sizeof(float);
}

}  // namespace

SessionShelf::~SessionShelf() {
  states_.Remove(*this);
}

std::shared_ptr<const RunState> SessionShelf::Find(const std::string& state_id) {
  std::lock_guard lock(states_.mutex_);
  for (Entry& entry : entries_) {
    if (entry.state_id != state_id) continue;
    entry.used = std::chrono::steady_clock::now();
    return {entry.held, &entry.held->state};
  }
  return nullptr;
}

void SessionShelf::Put(const std::string& state_id, const RunState& state) {
  const auto now = std::chrono::steady_clock::now();
  std::lock_guard lock(states_.mutex_);
  for (Entry& entry : entries_) {
    if (entry.state_id != state_id) continue;
    entry.used = now;
    return;
  }
  auto memory = states_.ReserveLocked(CostOf(state));
  if (!memory) return;
  entries_.push_back({state_id, std::make_shared<Held>(Held{std::move(*memory), state}), now});
}

Result<std::shared_ptr<const RunState>> SessionShelf::Read(
    const std::string& state_id, uint64_t bytes, const std::function<Result<RunState>()>& read) {
  std::optional<Reservation> memory;
  {
    std::lock_guard lock(states_.mutex_);
    memory = states_.ReserveLocked(bytes);
  }
  const bool keep = memory.has_value();
  // A run needs it all the same.
  if (!memory) memory = states_.ledger_.Reserve(MemoryUse::kSequences, bytes);
  if (!memory) return Fail(ErrorCode::kOutOfMemory, "there is no room for a state of a session");
  auto state = read();
  if (!state) return Fail(state.error());
  auto held = std::make_shared<Held>(Held{std::move(*memory), std::move(*state)});
  const RunState* inner = &held->state;
  std::lock_guard lock(states_.mutex_);
  held->memory.Shrink(CostOf(held->state));
  if (keep) entries_.push_back({state_id, held, std::chrono::steady_clock::now()});
  return std::shared_ptr<const RunState>(std::move(held), inner);
}

std::shared_ptr<SessionShelf> SessionStates::NewShelf() {
  auto shelf = std::make_shared<SessionShelf>(*this);
  std::lock_guard lock(mutex_);
  shelves_.push_back(shelf.get());
  return shelf;
}

void SessionStates::Remove(const SessionShelf& shelf) {
  std::lock_guard lock(mutex_);
  std::erase(shelves_, &shelf);
}

uint64_t SessionStates::BytesLocked() const {
  uint64_t bytes = 0;
  for (const SessionShelf* shelf : shelves_) {
    for (const auto& entry : shelf->entries_) bytes += entry.held->memory.bytes();
  }
  return bytes;
}

// A state that goes, though a run that is to begin has it: it does not give way to others any more.
void SessionStates::BookAnew(const std::shared_ptr<SessionShelf::Held>& held) {
  if (held.use_count() == 1) return;
  const uint64_t bytes = held->memory.bytes();
  held->memory.Release();
  held->memory = ledger_.Book(MemoryUse::kSequences, bytes);
}

// False: there is none left.
bool SessionStates::DropOldest() {
  SessionShelf* from = nullptr;
  size_t oldest = 0;
  for (SessionShelf* shelf : shelves_) {
    for (size_t i = 0; i < shelf->entries_.size(); ++i) {
      if (from != nullptr && shelf->entries_[i].used >= from->entries_[oldest].used) continue;
      from = shelf;
      oldest = i;
    }
  }
  if (from == nullptr) return false;
  BookAnew(from->entries_[oldest].held);
  from->entries_.erase(from->entries_.begin() + static_cast<ptrdiff_t>(oldest));
  return true;
}

void SessionStates::DropTo(uint64_t most) {
  while (BytesLocked() > most) {
    if (!DropOldest()) return;
  }
}

void SessionStates::SetLimit(uint64_t limit) {
  std::lock_guard lock(mutex_);
  limit_ = limit;
  DropTo(limit_);
}

uint64_t SessionStates::Reclaim(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t before = BytesLocked();
  DropTo(before - std::min(before, bytes));
  return before - BytesLocked();
}

void SessionStates::DropUnused(Time before) {
  std::lock_guard lock(mutex_);
  for (SessionShelf* shelf : shelves_) {
    std::erase_if(shelf->entries_, [&](const auto& entry) {
      if (entry.used >= before) return false;
      BookAnew(entry.held);
      return true;
    });
  }
}

SessionStates::Counts SessionStates::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts{0, BytesLocked(), limit_};
  for (const SessionShelf* shelf : shelves_) counts.states += shelf->entries_.size();
  return counts;
}

std::optional<Reservation> SessionStates::ReserveLocked(uint64_t bytes) {
  if (bytes > limit_) return std::nullopt;
  DropTo(limit_ - bytes);
  while (true) {
    auto memory = ledger_.Reserve(MemoryUse::kSessions, bytes);
    const uint64_t held = BytesLocked();
    if (memory || held == 0) return memory;
    DropTo(held - 1);
  }
}

}  // namespace mk::daemon
