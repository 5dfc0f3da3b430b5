#include "daemon/prefix_cache.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace mk::daemon {
std::shared_ptr<PrefixShelf> PrefixCache::NewShelf(std::shared_ptr<const Model> model) {
  if (disk_ != nullptr) disk_->Open(model->info());
  auto shelf = std::make_shared<PrefixShelf>(*this, std::move(model));
  std::lock_guard lock(mutex_);
  shelves_.push_back(shelf.get());
  return shelf;
}

void PrefixCache::SetLimit(uint64_t limit) {
  std::lock_guard lock(mutex_);
  limit_ = limit;
  while (memory_.bytes() > limit_ && EvictOne()) {
  }
}

uint64_t PrefixCache::Reclaim(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t before = memory_.bytes();
  while (before - memory_.bytes() < bytes && EvictOne()) {
  }
  return before - memory_.bytes();
}

void PrefixCache::SaveValuable() {
  std::lock_guard lock(mutex_);
  struct Valuable {
    double value;
    PrefixShelf* shelf;
    PrefixShelf::Entry* entry;
  };
  std::vector<Valuable> valuable;
  for (PrefixShelf* shelf : shelves_) {
    for (auto& entry : shelf->entries_) {
      const double value = ValueOf(entry);
      if (value >= kLeastWritten) valuable.push_back({value, shelf, &entry});
    }
  }
  std::stable_sort(valuable.begin(), valuable.end(),
                   [](const Valuable& a, const Valuable& b) { return a.value > b.value; });
  for (const Valuable& one : valuable) one.shelf->QueueWriteLocked(*one.entry);
}

PrefixCache::Forgotten PrefixCache::Forget(const std::function<bool(const ModelInfo&)>& of) {
  std::lock_guard lock(mutex_);
  Forgotten forgotten;
  const uint64_t before = memory_.bytes();
  for (PrefixShelf* shelf : shelves_) {
    if (!of(shelf->model_->info())) continue;
    forgotten.states += shelf->entries_.size();
    while (!shelf->entries_.empty()) ForgetLocked(*shelf, shelf->entries_.size() - 1);
  }
  forgotten.bytes = before - memory_.bytes();
  return forgotten;
}

PrefixCache::Counts PrefixCache::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts{0, memory_.bytes(), limit_, lookups_, hits_, disk_hits_, evicted_};
  for (const PrefixShelf* shelf : shelves_) counts.states += shelf->entries_.size();
  return counts;
}

std::vector<PrefixCache::ShelfList> PrefixCache::List() const {
  std::lock_guard lock(mutex_);
  std::vector<ShelfList> lists;
  for (const PrefixShelf* shelf : shelves_) {
    const ModelInfo& info = shelf->model_->info();
    ShelfList& list = lists.emplace_back(ShelfList{info.path, info.fingerprint, {}});
    for (const auto& entry : shelf->entries_) {
      PrefixShelf::Listed& state = list.states.emplace_back();
      state.kind = entry.kind;
      state.tokens = entry.tokens.size();
      state.logits = !entry.logits.empty();
      state.bytes = entry.extra_bytes();
      for (const StatePage& page : entry.pages) state.bytes += page.bytes;
      state.own_bytes = OwnBytesLocked(entry);
      state.value = ValueOf(entry);
      if (disk_ != nullptr && disk_->Holds(entry.file)) state.file = entry.file;
    }
  }
  return lists;
}

double PrefixCache::Decay(uint64_t age) {
  return std::exp2(-static_cast<double>(age) / kHalfLife);
}

double PrefixCache::ValueOf(const PrefixShelf::Entry& entry) const {
  return (1 + entry.hits) * Decay(clock_ - entry.last_used);
}

// ---- Charging ----

uint64_t PrefixCache::HoldLocked(const std::vector<StatePage>& pages) {
  uint64_t fresh = 0;
  for (const StatePage& page : pages) {
    HeldPage& held = pages_[page.address];
    held.bytes = page.bytes;
    ++held.holders;
    if (!held.charged) fresh += page.bytes;
  }
  return fresh;
}

void PrefixCache::ChargeLocked(const std::vector<StatePage>& pages, Reservation memory) {
  memory_.Add(std::move(memory));
  for (const StatePage& page : pages) pages_[page.address].charged = true;
}

void PrefixCache::LetGoLocked(const std::vector<StatePage>& pages) {
  uint64_t freed = 0;
  for (const StatePage& page : pages) {
    const auto held = pages_.find(page.address);
    if (--held->second.holders > 0) continue;
    if (held->second.charged) freed += held->second.bytes;
    pages_.erase(held);
  }
  memory_.Shrink(memory_.bytes() - freed);
}

uint64_t PrefixCache::OwnBytesLocked(const PrefixShelf::Entry& entry) const {
  uint64_t bytes = entry.extra_bytes();
  for (const StatePage& page : entry.pages) {
    const auto held = pages_.find(page.address);
    if (held != pages_.end() && held->second.holders == 1) bytes += page.bytes;
  }
  return bytes;
}

void PrefixCache::ForgetLocked(PrefixShelf& shelf, size_t index) {
  PrefixShelf::Entry& entry = shelf.entries_[index];
  LetGoLocked(entry.pages);
  memory_.Shrink(memory_.bytes() - entry.extra_bytes());
  shelf.entries_.erase(shelf.entries_.begin() + static_cast<ptrdiff_t>(index));
}

// False: there is nothing left to forget. What is being written would free nothing now; what was
// just fetched for a run goes last.
bool PrefixCache::EvictOne() {
  PrefixShelf* from = nullptr;
  size_t worst = 0;
  std::pair<bool, double> least;
  for (PrefixShelf* shelf : shelves_) {
    for (size_t i = 0; i < shelf->entries_.size(); ++i) {
      const PrefixShelf::Entry& entry = shelf->entries_[i];
      if (entry.writing) continue;
      const double value = ValueOf(entry);
      const std::pair<bool, double> rank(entry.fetched && value >= kLeastWritten, value);
      if (from != nullptr && rank >= least) continue;
      from = shelf;
      worst = i;
      least = rank;
    }
  }
  if (from == nullptr) return false;
  ForgetLocked(*from, worst);
  ++evicted_;
  return true;
}

std::optional<Reservation> PrefixCache::ReserveLocked(uint64_t bytes) {
  if (bytes > limit_) return std::nullopt;
  while (memory_.bytes() > limit_ - bytes) {
    if (!EvictOne()) return std::nullopt;
  }
  while (true) {
    auto memory = ledger_.Reserve(MemoryUse::kPrefixes, bytes);
    if (memory || !EvictOne()) return memory;
  }
}

// While there is little room left, the next to go is written before it goes, so that nobody who
// needs the room waits for a disk.
void PrefixCache::WriteBehindLocked() {
  PrefixShelf* from = nullptr;
  PrefixShelf::Entry* next = nullptr;
  for (PrefixShelf* shelf : shelves_) {
    for (auto& entry : shelf->entries_) {
      const double value = ValueOf(entry);
      if (value < kLeastWritten || !shelf->WantsWriteLocked(entry)) continue;
      if (next != nullptr && value >= ValueOf(*next)) continue;
      from = shelf;
      next = &entry;
    }
  }
  if (next != nullptr) from->QueueWriteLocked(*next);
}

}  // namespace mk::daemon
