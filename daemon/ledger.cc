#include "daemon/ledger.h"

#include <algorithm>
#include <limits>

namespace mk::daemon {

std::string_view MemoryUseName(MemoryUse use) {
  switch (use) {
    case MemoryUse::kModels:
      return "models";
    case MemoryUse::kSequences:
      return "sequences";
    case MemoryUse::kPrefixes:
      return "prefixes";
    case MemoryUse::kSessions:
      return "sessions";
    case MemoryUse::kCount:
      break;
  }
  return "unknown";
}

Reservation& Reservation::operator=(Reservation&& other) noexcept {
  if (this != &other) {
    Release();
    ledger_ = std::exchange(other.ledger_, nullptr);
    use_ = other.use_;
    bytes_ = other.bytes_;
  }
  return *this;
}

void Reservation::Add(Reservation other) {
  if (ledger_ == nullptr) {
    *this = std::move(other);
  } else if (other.ledger_ != nullptr) {
    bytes_ += other.bytes_;
    other.ledger_ = nullptr;
  }
}

void Reservation::Shrink(uint64_t bytes) {
  if (ledger_ == nullptr || bytes >= bytes_) return;
  const uint64_t over = bytes_ - bytes;
  ledger_->by_use_[static_cast<size_t>(use_)] -= over;
  ledger_->total_ -= over;
  bytes_ = bytes;
}

void Reservation::Release() {
  Shrink(0);
  ledger_ = nullptr;
}

std::optional<Reservation> Ledger::Reserve(MemoryUse use, uint64_t bytes) {
  while (const uint64_t missing = TryBook(bytes)) {
    // What gives way does not push out its like, nor goes for what would not fit anyway.
    const bool gives_way = use == MemoryUse::kPrefixes || use == MemoryUse::kSessions;
    if (gives_way || Missing(bytes) > 0) return std::nullopt;
    if (!reclaim_ || reclaim_(missing) == 0) return std::nullopt;
  }
  by_use_[static_cast<size_t>(use)] += bytes;
  return Reservation(this, use, bytes);
}

uint64_t Ledger::TryBook(uint64_t bytes) {
  uint64_t now = total_.load();
  do {
    const uint64_t limit = budget_.load();
    if (now > limit) {
      const uint64_t over = now - limit;
      return over + std::min(bytes, std::numeric_limits<uint64_t>::max() - over);
    }
    if (bytes > limit - now) return bytes - (limit - now);
  } while (!total_.compare_exchange_weak(now, now + bytes));
  return 0;
}

uint64_t Ledger::Missing(uint64_t bytes) const {
  const uint64_t limit = budget();
  const uint64_t now = firm();
  if (now <= limit && bytes <= limit - now) return 0;
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  return bytes > kMost - now ? kMost : now + bytes - limit;
}

Reservation Ledger::Book(MemoryUse use, uint64_t bytes) {
  total_ += bytes;
  by_use_[static_cast<size_t>(use)] += bytes;
  return Reservation(this, use, bytes);
}

}  // namespace mk::daemon
