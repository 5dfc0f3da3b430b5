// The memory ledger: who was promised how many bytes of the budget.
//
// Memory is reserved before it is used; what does not fit is refused before anything is allocated.
// Thread-safe. A Reservation gives its bytes back when it goes out of scope; the ledger outlives
// its reservations. What the prefix cache and idle sessions hold counts as free: it is given up
// when somebody else needs the room.

#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

namespace mk::daemon {

enum class MemoryUse : size_t {
  kModels,     // what loaded models hold beside the mapped file
  kSequences,  // states and caches of running requests
  kPrefixes,   // the prefix cache, which gives way to the others
  kSessions,   // states of sessions that are on disk as well, which give way too
  kCount,
};

std::string_view MemoryUseName(MemoryUse use);

class Ledger;

class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)), use_(other.use_), bytes_(other.bytes_) {}
  Reservation& operator=(Reservation&& other) noexcept;
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() { Release(); }

  uint64_t bytes() const { return ledger_ != nullptr ? bytes_ : 0; }
  // Takes over what another one of the same ledger and use has.
  void Add(Reservation other);
  // Gives back what is beyond so many bytes.
  void Shrink(uint64_t bytes);
  void Release();

 private:
  friend class Ledger;
  Reservation(Ledger* ledger, MemoryUse use, uint64_t bytes)
      : ledger_(ledger), use_(use), bytes_(bytes) {}

  Ledger* ledger_ = nullptr;
  MemoryUse use_ = MemoryUse::kModels;
  uint64_t bytes_ = 0;
};

class Ledger {
 public:
  explicit Ledger(uint64_t budget) : budget_(budget) {}

  // What frees bytes that give way when a reservation does not fit: it is given what is missing and
  // returns what it freed. Called from any thread that reserves. Set before those run.
  void SetReclaim(std::function<uint64_t(uint64_t)> reclaim) { reclaim_ = std::move(reclaim); }

  // Nothing when the bytes do not fit into what is left of the budget.
  std::optional<Reservation> Reserve(MemoryUse use, uint64_t bytes);
  // For what is in use already and cannot be given back: books it whether it fits or not.
  Reservation Book(MemoryUse use, uint64_t bytes);

  uint64_t budget() const { return budget_.load(); }
  // Lowering the budget below what is in use only stops new reservations.
  void SetBudget(uint64_t budget) { budget_.store(budget); }
  uint64_t used() const { return total_.load(); }
  uint64_t used(MemoryUse use) const { return by_use_[static_cast<size_t>(use)].load(); }
  uint64_t available() const {
    const uint64_t limit = budget();
    const uint64_t now = firm();
    return now < limit ? limit - now : 0;
  }
  // What would have to be freed before so many bytes fit.
  uint64_t Missing(uint64_t bytes) const;

 private:
  friend class Reservation;

  // What is in use and does not give way. The counts are not read at one time.
  uint64_t firm() const {
    const uint64_t all = used();
    return all - std::min(all, used(MemoryUse::kPrefixes) + used(MemoryUse::kSessions));
  }
  // Bytes that are missing; 0: they are booked now.
  uint64_t TryBook(uint64_t bytes);

  std::function<uint64_t(uint64_t)> reclaim_;
  std::atomic<uint64_t> budget_;
  std::atomic<uint64_t> total_{0};
  std::array<std::atomic<uint64_t>, static_cast<size_t>(MemoryUse::kCount)> by_use_{};
};

}  // namespace mk::daemon
