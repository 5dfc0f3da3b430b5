#include "daemon/prefix_cache.h"

#include <algorithm>
#include <cmath>

namespace mk::daemon {
namespace {

// Uses of the cache in which the hits of a state lose half of their weight.
constexpr double kHalfLife = 64;

// A short prompt is read again sooner than it is cut in two for what may follow it.
constexpr size_t kShortest = 2 * kPrefillBlock;

size_t CommonLength(std::span<const int32_t> a, std::span<const int32_t> b) {
  const size_t most = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(most), b.begin()).first -
      a.begin());
}

double Decay(uint64_t age) {
  return std::exp2(-static_cast<double>(age) / kHalfLife);
}

}  // namespace

PrefixShelf::~PrefixShelf() {
  cache_.Remove(*this);
}

PrefixShelf::Found PrefixShelf::Find(const PrefixKind& kind, std::span<const int32_t> prompt) {
  std::lock_guard lock(cache_.mutex_);
  ++cache_.lookups_;
  ++cache_.clock_;
  Found found;
  Entry* best = nullptr;
  for (Entry& entry : entries_) {
    if (entry.kind != kind) continue;
    const size_t common = CommonLength(entry.tokens, prompt);
    found.shared = std::max(found.shared, common);
    const bool whole = common == entry.tokens.size() &&
                       (common < prompt.size() || !entry.logits.empty()) &&
                       Usable(common, prompt.size(), BlockOf(kind));
    if (whole && (best == nullptr || common > best->tokens.size())) best = &entry;
  }
  if (best == nullptr) return found;
  auto copy = best->state->Clone();
  if (!copy) return found;  // no memory: the prompt is read
  found.state = std::move(*copy);
  found.tokens = best->tokens.size();
  if (found.tokens == prompt.size()) found.logits = best->logits;
  best->hits = best->hits * Decay(cache_.clock_ - best->last_used) + 1;
  best->last_used = cache_.clock_;
  ++cache_.hits_;
  return found;
}

void PrefixShelf::Store(const PrefixKind& kind, std::span<const int32_t> tokens,
                        const Sequence& state, std::span<const float> logits) {
  std::lock_guard lock(cache_.mutex_);
  ++cache_.clock_;
  const auto known = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.kind == kind && std::ranges::equal(entry.tokens, tokens);
  });
  // Two runs read the same prompt at once, or one was stored as the middle of another.
  if (known != entries_.end()) {
    if (known->logits.empty()) known->logits.assign(logits.begin(), logits.end());
    known->last_used = cache_.clock_;
    return;
  }
  auto memory =
      cache_.ReserveLocked(state.state_bytes() + tokens.size_bytes() + logits.size_bytes());
  if (!memory) return;
  auto copy = state.Clone();
  if (!copy) return;
  cache_.bytes_ += memory->bytes();
  entries_.push_back({kind,
                      {tokens.begin(), tokens.end()},
                      std::move(*copy),
                      {logits.begin(), logits.end()},
                      std::move(*memory),
                      cache_.clock_,
                      0});
}

std::vector<size_t> PrefixShelf::Marks(const PrefixKind& kind, size_t known, size_t shared,
                                       size_t prompt_length) const {
  std::vector<size_t> marks;
  const size_t parting = shared / kPrefillBlock * kPrefillBlock;
  if (parting > known && parting < prompt_length) marks.push_back(parting);
  // A longer prompt cannot go on from the end of this one when a block would go across it.
  const size_t last = (prompt_length - 1) / kPrefillBlock * kPrefillBlock;
  const bool worth_a_step = last >= kShortest && last > std::max(known, parting);
  if (BlockOf(kind) > 1 && worth_a_step) marks.push_back(last);
  if (prompt_length > known) marks.push_back(prompt_length);
  return marks;
}

std::shared_ptr<PrefixShelf> PrefixCache::NewShelf(const ModelInfo& info) {
  auto shelf = std::make_shared<PrefixShelf>(*this, info);
  std::lock_guard lock(mutex_);
  shelves_.push_back(shelf.get());
  return shelf;
}

void PrefixCache::SetLimit(uint64_t limit) {
  std::lock_guard lock(mutex_);
  limit_ = limit;
  while (bytes_ > limit_ && EvictOne()) {
  }
}

uint64_t PrefixCache::Reclaim(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  const uint64_t before = bytes_;
  while (before - bytes_ < bytes && EvictOne()) {
  }
  return before - bytes_;
}

PrefixCache::Counts PrefixCache::counts() const {
  std::lock_guard lock(mutex_);
  Counts counts{0, bytes_, limit_, lookups_, hits_, evicted_};
  for (const PrefixShelf* shelf : shelves_) counts.states += shelf->entries_.size();
  return counts;
}

void PrefixCache::Remove(const PrefixShelf& shelf) {
  std::lock_guard lock(mutex_);
  for (const auto& entry : shelf.entries_) bytes_ -= entry.memory.bytes();
  std::erase(shelves_, &shelf);
}

double PrefixCache::ValueOf(const PrefixShelf::Entry& entry) const {
  return (1 + entry.hits) * Decay(clock_ - entry.last_used);
}

// False: there is nothing left to forget.
bool PrefixCache::EvictOne() {
  PrefixShelf* from = nullptr;
  size_t worst = 0;
  double least = 0;
  for (PrefixShelf* shelf : shelves_) {
    for (size_t i = 0; i < shelf->entries_.size(); ++i) {
      const double value = ValueOf(shelf->entries_[i]);
      if (from != nullptr && value >= least) continue;
      from = shelf;
      worst = i;
      least = value;
    }
  }
  if (from == nullptr) return false;
  bytes_ -= from->entries_[worst].memory.bytes();
  from->entries_.erase(from->entries_.begin() + static_cast<ptrdiff_t>(worst));
  ++evicted_;
  return true;
}

std::optional<Reservation> PrefixCache::ReserveLocked(uint64_t bytes) {
  if (bytes > limit_) return std::nullopt;
  while (bytes_ > limit_ - bytes) {
    if (!EvictOne()) return std::nullopt;
  }
  while (true) {
    auto memory = ledger_.Reserve(MemoryUse::kPrefixes, bytes);
    if (memory || !EvictOne()) return memory;
  }
}

}  // namespace mk::daemon
