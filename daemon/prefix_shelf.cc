// The states of one model: storing, fetching from disk and writing to it.

#include <algorithm>
#include <utility>

#include "daemon/prefix_cache.h"

namespace mk::daemon {
namespace {

// A file is worth reading if it spares at least so many tokens.
constexpr size_t kWorthReading = kPrefillBlock;

// States that are written after their shelf has gone, and the model whose they are.
struct Legacy {
  std::shared_ptr<const Model> model;  // goes last
  struct State {
    PrefixHead head;
    std::unique_ptr<Sequence> state;
    std::vector<float> logits;
    double value = 0;
  };
  std::vector<State> states;
};

}  // namespace

PrefixShelf::PrefixShelf(PrefixCache& cache, std::shared_ptr<const Model> model)
    : cache_(cache), model_(std::move(model)) {
  if (auto keeper = KeeperOf(*model_)) keeper_ = *keeper;
}

PrefixShelf::~PrefixShelf() {
  auto legacy = std::make_shared<Legacy>();
  legacy->model = model_;
  {
    std::lock_guard lock(cache_.mutex_);
    for (Entry& entry : TakeValuableLocked()) {
      PrefixHead head{entry.kind, std::move(entry.tokens), !entry.logits.empty()};
      legacy->states.push_back(
          {std::move(head), std::move(entry.state), std::move(entry.logits), entry.hits + 1});
    }
    std::erase(cache_.shelves_, this);
  }
  PrefixDisk* const disk = cache_.disk_;
  if (disk == nullptr) return;
  disk->Close(model_->info().fingerprint);
  if (legacy->states.empty() || keeper_ == nullptr || !disk->on()) return;
  disk->PostWrite([disk, legacy = std::move(legacy)] {
    for (Legacy::State& one : legacy->states) {
      disk->Save(*legacy->model, std::move(one.head), one.logits, *one.state, one.value);
      one.state.reset();
    }
  });
}

// Empties the shelf; what of it is worth writing, the most valuable first.
std::vector<PrefixShelf::Entry> PrefixShelf::TakeValuableLocked() {
  // The model's memory was given back already: what is held on to a little longer is bounded.
  constexpr uint64_t kMost = uint64_t{256} << 20;
  std::vector<Entry> valuable;
  for (Entry& entry : entries_) {
    const bool good = cache_.ValueOf(entry) >= PrefixCache::kLeastWritten &&
                      entry.tokens.size() >= kShortestPrefix && !IsWrittenLocked(entry);
    cache_.LetGoLocked(entry.pages);
    cache_.memory_.Shrink(cache_.memory_.bytes() - entry.extra_bytes());
    if (!good) continue;
    entry.hits = cache_.ValueOf(entry) - 1;
    valuable.push_back(std::move(entry));
  }
  entries_.clear();
  std::stable_sort(valuable.begin(), valuable.end(),
                   [](const Entry& a, const Entry& b) { return a.hits > b.hits; });
  uint64_t bytes = 0;
  for (size_t i = 0; i < valuable.size(); ++i) {
    bytes += valuable[i].state->state_bytes();
    if (bytes > kMost) valuable.resize(i);
  }
  return valuable;
}

size_t PrefixShelf::BlockOf(const PrefixKind& kind) const {
  return kind.chunked_prefill ? model_->info().prompt_block : 1;
}

bool PrefixShelf::keeps() const {
  std::lock_guard lock(cache_.mutex_);
  return cache_.limit_ > 0;
}

PrefixShelf::Entry* PrefixShelf::FindLocked(const PrefixKind& kind,
                                            std::span<const int32_t> tokens) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.kind == kind && std::ranges::equal(entry.tokens, tokens);
  });
  return found == entries_.end() ? nullptr : &*found;
}

PrefixShelf::Found PrefixShelf::Find(const PrefixKind& kind, std::span<const int32_t> prompt) {
  std::lock_guard lock(cache_.mutex_);
  ++cache_.lookups_;
  ++cache_.clock_;
  Found found;
  Entry* best = nullptr;
  for (Entry& entry : entries_) {
    if (entry.kind != kind) continue;
    found.shared = std::max(found.shared, CommonLength(entry.tokens, prompt));
    if (best != nullptr && entry.tokens.size() <= best->tokens.size()) continue;
    if (BeginsPrompt(entry.tokens, !entry.logits.empty(), prompt, BlockOf(kind))) best = &entry;
  }
  if (cache_.disk_ != nullptr) {
    const size_t shared = cache_.disk_->Shared(model_->info().fingerprint, kind, prompt);
    found.shared = std::max(found.shared, shared);
  }
  if (best == nullptr) return found;
  auto copy = best->state->Clone();
  if (!copy) return found;  // no memory: the prompt is read
  found.state = std::move(*copy);
  found.tokens = best->tokens.size();
  if (found.tokens == prompt.size()) found.logits = best->logits;
  best->hits = best->hits * PrefixCache::Decay(cache_.clock_ - best->last_used) + 1;
  best->last_used = cache_.clock_;
  ++cache_.hits_;
  if (best->fetched) ++cache_.disk_hits_;
  best->fetched = false;
  if (IsWrittenLocked(*best)) {
    cache_.disk_->Credit(best->file);
  } else {
    QueueWriteLocked(*best);  // it has proved useful
  }
  return found;
}

void PrefixShelf::Store(const PrefixKind& kind, std::span<const int32_t> tokens,
                        const Sequence& state, std::span<const float> logits) {
  std::lock_guard lock(cache_.mutex_);
  ++cache_.clock_;
  // Two runs read the same prompt at once, or one was stored as the middle of another.
  if (Entry* known = FindLocked(kind, tokens)) {
    known->last_used = cache_.clock_;
    if (!known->logits.empty() || logits.empty()) return;
    auto memory = cache_.ledger_.Reserve(MemoryUse::kPrefixes, logits.size_bytes());
    if (!memory) return;
    cache_.memory_.Add(std::move(*memory));
    known->logits.assign(logits.begin(), logits.end());
    return;
  }
  auto copy = state.Clone();
  if (!copy) return;
  Entry entry;
  entry.kind = kind;
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.state = std::move(*copy);
  entry.logits.assign(logits.begin(), logits.end());
  InsertLocked(std::move(entry));
}

void PrefixShelf::InsertLocked(Entry entry) {
  if (keeper_ != nullptr) {
    entry.pages = keeper_->Pages(*entry.state);
  } else {
    entry.pages = {{entry.state.get(), entry.state->state_bytes()}};
  }
  entry.last_used = cache_.clock_;
  uint64_t whole = entry.extra_bytes();
  for (const StatePage& page : entry.pages) whole += page.bytes;
  if (whole > cache_.limit_) return;  // the others would go in vain
  const uint64_t evicted = cache_.evicted_;
  // Held before others are forgotten: what they share with this one stays.
  const uint64_t bytes = cache_.HoldLocked(entry.pages) + entry.extra_bytes();
  auto memory = cache_.ReserveLocked(bytes);
  if (!memory) return cache_.LetGoLocked(entry.pages);
  cache_.ChargeLocked(entry.pages, std::move(*memory));
  entries_.push_back(std::move(entry));
  const bool little_room = cache_.memory_.bytes() > cache_.limit_ / 2;
  if (little_room || cache_.evicted_ > evicted) cache_.WriteBehindLocked();
}

std::vector<size_t> PrefixShelf::Marks(const PrefixKind& kind, size_t known, size_t shared,
                                       size_t prompt_length) const {
  std::vector<size_t> marks;
  const size_t parting = shared / kPrefillBlock * kPrefillBlock;
  if (parting > known && parting < prompt_length) marks.push_back(parting);
  // A longer prompt cannot go on from the end of this one when a block would go across it.
  const size_t last = (prompt_length - 1) / kPrefillBlock * kPrefillBlock;
  const bool worth_a_step = last >= kShortestPrefix && last > std::max(known, parting);
  if (BlockOf(kind) > 1 && worth_a_step) marks.push_back(last);
  if (prompt_length > known) marks.push_back(prompt_length);
  return marks;
}

// ---- Disk ----

// The file that has enough beyond what memory has.
PrefixDisk::FileRef PrefixShelf::WorthFetching(const PrefixKind& kind,
                                               std::span<const int32_t> prompt) const {
  PrefixDisk* const disk = cache_.disk_;
  if (disk == nullptr || !disk->on() || keeper_ == nullptr) return nullptr;
  size_t known = 0;
  {
    std::lock_guard lock(cache_.mutex_);
    for (const Entry& entry : entries_) {
      if (entry.kind != kind || entry.tokens.size() <= known) continue;
      if (BeginsPrompt(entry.tokens, !entry.logits.empty(), prompt, BlockOf(kind))) {
        known = entry.tokens.size();
      }
    }
  }
  return disk->FindLongest(model_->info().fingerprint, kind, prompt, BlockOf(kind),
                           known + kWorthReading);
}

bool PrefixShelf::WantsFetch(const PrefixKind& kind, std::span<const int32_t> prompt) const {
  return WorthFetching(kind, prompt) != nullptr;
}

void PrefixShelf::Fetch(const PrefixKind& kind, std::span<const int32_t> prompt) {
  PrefixDisk* const disk = cache_.disk_;
  // The next shorter one, where a file turns out to be of no use; each is tried once.
  while (const PrefixDisk::FileRef file = WorthFetching(kind, prompt)) {
    const PrefixDisk::HeadRef head = disk->HeadOf(file);
    if (!head) continue;  // it went meanwhile
    std::optional<Reservation> memory;
    {
      std::lock_guard lock(cache_.mutex_);
      memory = cache_.ReserveLocked(model_->state_bytes(head->tokens.size()));
    }
    if (!memory) return;
    auto loaded = disk->Load(file, *model_);
    std::lock_guard lock(cache_.mutex_);
    memory->Release();
    if (!loaded) {
      if (disk->Holds(file)) return;  // no memory
      continue;
    }
    if (FindLocked(kind, head->tokens) != nullptr) return;
    ++cache_.clock_;
    Entry entry;
    entry.kind = kind;
    entry.tokens = head->tokens;
    entry.state = std::move(loaded->state);
    entry.logits = std::move(loaded->logits);
    entry.hits = std::max(0.0, disk->ValueOf(file) - 1);
    entry.fetched = true;
    entry.file = file;
    return InsertLocked(std::move(entry));
  }
}

// Whether the disk has all that there is of it.
bool PrefixShelf::IsWrittenLocked(const Entry& entry) const {
  PrefixDisk* const disk = cache_.disk_;
  if (disk == nullptr || !disk->Holds(entry.file)) return false;
  const auto head = disk->HeadOf(entry.file);
  return entry.logits.empty() || (head && head->logits);
}

bool PrefixShelf::WantsWriteLocked(const Entry& entry) const {
  const PrefixDisk* const disk = cache_.disk_;
  return disk != nullptr && disk->on() && keeper_ != nullptr && !entry.queued && !entry.writing &&
         entry.tokens.size() >= kShortestPrefix && !IsWrittenLocked(entry);
}

void PrefixShelf::QueueWriteLocked(Entry& entry) {
  if (!WantsWriteLocked(entry)) return;
  entry.queued =
      cache_.disk_->PostWrite([self = weak_from_this(), kind = entry.kind, tokens = entry.tokens] {
        if (const auto shelf = self.lock()) shelf->Write(kind, tokens);
      });
}

void PrefixShelf::Write(const PrefixKind& kind, std::span<const int32_t> tokens) {
  PrefixHead head{kind, {tokens.begin(), tokens.end()}, false};
  std::unique_ptr<Sequence> state;
  std::vector<float> logits;
  double value = 0;
  {
    std::lock_guard lock(cache_.mutex_);
    Entry* entry = FindLocked(kind, tokens);
    if (entry == nullptr) return;  // forgotten meanwhile
    entry->queued = false;
    if (IsWrittenLocked(*entry)) return;
    auto copy = entry->state->Clone();
    if (!copy) return;
    state = std::move(*copy);
    logits = entry->logits;
    value = cache_.ValueOf(*entry);
    entry->writing = true;
  }
  head.logits = !logits.empty();
  const auto file = cache_.disk_->Save(*model_, std::move(head), logits, *state, value);
  state.reset();
  std::lock_guard lock(cache_.mutex_);
  Entry* entry = FindLocked(kind, tokens);
  if (entry == nullptr) return;
  entry->writing = false;
  if (file) entry->file = file;
}

}  // namespace mk::daemon
