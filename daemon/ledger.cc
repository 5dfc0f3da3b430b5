#include "daemon/ledger.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

namespace mk::daemon {
namespace {

// Smallest memory.max of our cgroup (version 2) and its parents; the maximum when none is set.
uint64_t CgroupLimit() {
  uint64_t limit = std::numeric_limits<uint64_t>::max();
  std::ifstream self("/proc/self/cgroup");
  std::string line;
  while (std::getline(self, line)) {
    if (line.rfind("0::", 0) != 0) continue;
    std::filesystem::path group = line.substr(3);
    while (true) {
      std::ifstream file("/sys/fs/cgroup" + group.string() + "/memory.max");
      uint64_t value = 0;
      if (file >> value) limit = std::min(limit, value);  // "max" is no number
      if (!group.has_parent_path() || group == group.parent_path()) break;
      group = group.parent_path();
    }
  }
  std::ifstream version1("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  uint64_t value = 0;
  if (version1 >> value) limit = std::min(limit, value);
  return limit;
}

}  // namespace

std::string_view MemoryUseName(MemoryUse use) {
  switch (use) {
    case MemoryUse::kModels:
      return "models";
    case MemoryUse::kSequences:
      return "sequences";
    case MemoryUse::kPrefixes:
      return "prefixes";
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

void Reservation::Release() {
  if (ledger_ == nullptr) return;
  ledger_->by_use_[static_cast<size_t>(use_)] -= bytes_;
  ledger_->total_ -= bytes_;
  ledger_ = nullptr;
}

std::optional<Reservation> Ledger::Reserve(MemoryUse use, uint64_t bytes) {
  while (const uint64_t missing = TryBook(bytes)) {
    if (use == MemoryUse::kPrefixes || !reclaim_ || reclaim_(missing) == 0) return std::nullopt;
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

Reservation Ledger::Book(MemoryUse use, uint64_t bytes) {
  total_ += bytes;
  by_use_[static_cast<size_t>(use)] += bytes;
  return Reservation(this, use, bytes);
}

uint64_t DefaultMemoryBudget() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_size = sysconf(_SC_PAGESIZE);
  uint64_t machine = uint64_t{4} << 30;
  if (pages > 0 && page_size > 0) {
    machine = static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_size);
  }
  return std::min(machine, CgroupLimit()) / 4 * 3;
}

}  // namespace mk::daemon
