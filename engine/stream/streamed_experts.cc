#include "engine/stream/streamed_experts.h"

#include <algorithm>
#include <utility>

#include "engine/stream/slow_disk.h"

namespace mk {
namespace {

constexpr uint64_t kMostInFlight = uint64_t{256} << 20;
constexpr uint64_t kReadSlack = 8192;  // what alignment adds to a read
constexpr size_t kMostReadThreads = 16;

// Bytes of reads that may be under way at once.
uint64_t InFlight(uint64_t largest_record, uint64_t budget) {
  return std::max(2 * largest_record + kReadSlack, std::min(budget / 16, kMostInFlight));
}

Error BudgetError(const MkimFile& file, uint64_t budget, uint64_t smallest) {
  constexpr uint64_t kKiB = 1024;
  return {ErrorCode::kOutOfMemory,
          file.path() + ": " + std::to_string(budget / kKiB) +
              " KiB for streamed experts are less than one token needs in a layer",
          "give at least " + std::to_string((smallest + kKiB - 1) / kKiB) + " KiB"};
}

struct OpenedReader {
  std::unique_ptr<DiskReader> reader;
  bool uring = false;
};

Result<OpenedReader> OpenReader(const StreamOptions& options) {
  OpenedReader opened;
  if (options.io != StreamIo::kThreads) {
    if (Result<std::unique_ptr<DiskReader>> uring = CreateUringReader(options.depth); uring) {
      opened = {std::move(*uring), true};
    }
  }
  if (opened.reader == nullptr) {
    Result<std::unique_ptr<DiskReader>> threads =
        CreatePreadReader(std::min<size_t>(options.depth, kMostReadThreads));
    if (!threads) return Fail(threads.error());
    opened.reader = std::move(*threads);
  }
  if (options.slow_disk.enabled()) {
    opened.reader = CreateSlowDisk(std::move(opened.reader), options.slow_disk);
  }
  return opened;
}

template <size_t... I>
std::array<PrefetchAccount, sizeof...(I)> Accounts(const StreamOptions& options,
                                                   std::index_sequence<I...> /*sources*/) {
  return {PrefetchAccount(options.prefetch[I])...};
}

}  // namespace

// Buffers of reads are rounded up to powers of two.
uint64_t StreamedExperts::CacheBytes(uint64_t largest_record, uint64_t budget) {
  const uint64_t buffers = 2 * InFlight(largest_record, budget);
  return budget > buffers ? budget - buffers : 0;
}

uint64_t StreamedExperts::SmallestBudget(const ExpertTable& table, size_t top_k) {
  const uint64_t cache = table.largest_value() * top_k;
  const uint64_t most_reads = 2 * (2 * table.largest_record() + kReadSlack);
  // Either bound of InFlight may be the one that counts.
  return std::max(cache + most_reads, (cache * 8 + 6) / 7);
}

uint64_t StreamedExperts::LargestBudget(const ExpertTable& table) {
  const uint64_t all = table.all_values();
  // As for the smallest; beyond the last bound of InFlight nothing more is needed.
  const uint64_t growing =
      std::max(all + 2 * (2 * table.largest_record() + kReadSlack), all / 7 * 8 + 8);
  return std::min(growing,
                  all + 2 * std::max(kMostInFlight, 2 * table.largest_record() + kReadSlack));
}

uint64_t StreamedExperts::TableBytes(const ExpertTable& table) {
  constexpr uint64_t kPolicyBytes = 40;  // entry, links, counts
  return table.keys() * (sizeof(ExpertRecord) + sizeof(Entry) + kPolicyBytes);
}

StreamedExperts::StreamedExperts(std::shared_ptr<const MkimFile> file, ExpertTable table,
                                 size_t top_k, const StreamOptions& options)
    : file_(std::move(file)),
      table_(std::move(table)),
      top_k_(top_k),
      options_(options),
      budget_(options.budget),
      policy_(CachePolicy::Create(options.policy, table_.keys(),
                                  CacheBytes(table_.largest_record(), options.budget))),
      entries_(table_.keys()),
      accounts_(Accounts(options, std::make_index_sequence<kPrefetchSources>())) {
  if (options.prefetch[static_cast<size_t>(PrefetchSource::kMarkov)]) {
    markov_.emplace(table_.layers(), table_.experts(), top_k_, top_k_);
  }
}

Result<std::unique_ptr<StreamedExperts>> StreamedExperts::Create(
    std::shared_ptr<const MkimFile> file, ExpertTable table, size_t top_k, const float* codebook,
    const StreamOptions& options, std::unique_ptr<DiskReader> reader) {
  const uint64_t smallest = SmallestBudget(table, top_k);
  if (options.budget < smallest) return Fail(BudgetError(*file, options.budget, smallest));
  OpenedReader opened{std::move(reader), false};
  if (opened.reader == nullptr) {
    Result<OpenedReader> found = OpenReader(options);
    if (!found) return Fail(found.error());
    opened = std::move(*found);
  }
  std::unique_ptr<StreamedExperts> store(
      new StreamedExperts(std::move(file), std::move(table), top_k, options));
  store->uring_ = opened.uring;
  FetchOptions fetch;
  fetch.plan.fuse = options.fuse;
  fetch.direct = options.io != StreamIo::kBuffered;
  fetch.bytes_in_flight = InFlight(store->table_.largest_record(), options.budget);
  store->fetcher_.reset(new ExpertFetcher(*store->file_, store->table_, codebook,
                                          std::move(opened.reader), fetch, *store));
  if (Status started = store->fetcher_->Start(); !started) return Fail(started.error());
  return store;
}

StreamedExperts::~StreamedExperts() = default;

StreamedExperts::ReadClass StreamedExperts::ClassOf(PrefetchSource source) {
  switch (source) {
    case PrefetchSource::kTable:
      return kTable;
    case PrefetchSource::kDraft:
      return kDraft;
    case PrefetchSource::kLookahead:
      return kLookahead;
    case PrefetchSource::kMarkov:
    case PrefetchSource::kSession:
      break;
  }
  return kHistory;
}

bool StreamedExperts::WantsPrefetch(PrefetchSource source) const {
  const std::lock_guard lock(mutex_);
  return accounts_[static_cast<size_t>(source)].stats().active;
}

void StreamedExperts::Prefetch(size_t layer, std::span<const uint32_t> experts,
                               PrefetchSource source) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    for (const uint32_t expert : experts) PrefetchKey(table_.KeyOf(layer, expert), source);
    wake = std::exchange(queued_, false);
  }
  if (wake) fetcher_->Wake();
}

void StreamedExperts::PrefetchKey(ExpertKey key, PrefetchSource source) {
  Entry& entry = entries_[key];
  if (entry.phase != Phase::kAbsent) return;
  PrefetchAccount& account = AccountOf(source);
  if (!account.stats().active) {
    account.Skipped();
    return;
  }
  const ReadClass read_class = ClassOf(source);
  // What would wait longer than it is worth is not queued at all.
  if ((queues_[read_class].size() + 1) * table_.largest_value() > policy_->budget() / 2) return;
  entry.source = source;
  Queue(key, read_class);
}

void StreamedExperts::Queue(ExpertKey key, ReadClass read_class) {
  entries_[key].phase = Phase::kQueued;
  entries_[key].read_class = read_class;
  queues_[read_class].push_back(key);
  queued_ = true;
}

// Drops predictions for a layer whose demands are known now.
void StreamedExperts::DropQueued(size_t layer) {
  for (const ReadClass read_class : {kLookahead, kHistory}) {
    std::erase_if(queues_[read_class], [&](ExpertKey key) {
      if (table_.LayerOf(key) != layer) return false;
      Entry& entry = entries_[key];
      if (entry.phase == Phase::kQueued && entry.read_class == read_class) {
        entry.phase = Phase::kAbsent;
        entry.source.reset();
      }
      return true;
    });
  }
}

void StreamedExperts::CountPass(size_t layer) {
  if (layer <= last_layer_) {
    ++pass_;
    for (PrefetchAccount& account : accounts_) account.StartPass(pass_);
  }
  last_layer_ = layer;
}

void StreamedExperts::Request(size_t layer, std::span<const uint32_t> experts) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    CountPass(layer);
    for (const uint32_t expert : experts) Demand(table_.KeyOf(layer, expert));
    DropQueued(layer);
    ObserveMarkov(layer, experts);
    wake = std::exchange(queued_, false);
  }
  if (wake) fetcher_->Wake();
}

void StreamedExperts::Demand(ExpertKey key) {
  Entry& entry = entries_[key];
  ++entry.wanted;
  ++entry.uses;
  ++stats_.demands;
  const std::optional<PrefetchSource> source = std::exchange(entry.source, std::nullopt);
  switch (entry.phase) {
    case Phase::kAbsent:
      ++stats_.misses;
      Queue(key, kDemand);
      return;
    case Phase::kQueued:
      if (source) AccountOf(*source).Late(pass_);
      ++stats_.misses;
      if (entry.read_class != kDemand) Queue(key, kDemand);
      return;
    case Phase::kReading:
      if (source) AccountOf(*source).Late(pass_);
      ++stats_.joined;
      break;
    case Phase::kResident:
      if (source) AccountOf(*source).Useful(pass_);
      ++stats_.hits;
      policy_->Use(key);
      policy_->Pin(key);
      break;
    case Phase::kPassing:
      ++stats_.hits;
      break;
  }
  SetCharge(key, Charge::kWanted);
}

void StreamedExperts::ObserveMarkov(size_t layer, std::span<const uint32_t> experts) {
  if (!markov_) return;
  predicted_.clear();
  for (const uint32_t expert : experts) markov_->Observe(layer, expert, predicted_);
  for (const ExpertKey key : predicted_) PrefetchKey(key, PrefetchSource::kMarkov);
}

void StreamedExperts::SetCharge(ExpertKey key, Charge charge) {
  Entry& entry = entries_[key];
  const uint64_t bytes = BytesOf(key);
  if (entry.charge == Charge::kWanted) wanted_bytes_ -= bytes;
  if (entry.charge == Charge::kGuessed) guessed_bytes_ -= bytes;
  if (charge == Charge::kWanted) wanted_bytes_ += bytes;
  if (charge == Charge::kGuessed) guessed_bytes_ += bytes;
  entry.charge = charge;
}

Result<size_t> StreamedExperts::Acquire(size_t layer, std::span<uint32_t> pending,
                                        std::span<ExpertWeights> out) {
  std::unique_lock lock(mutex_);
  std::optional<StreamClock::time_point> stalled;
  for (;;) {
    size_t ready = 0;
    for (size_t i = 0; i < pending.size(); ++i) {
      const ExpertKey key = table_.KeyOf(layer, pending[i]);
      const Entry& entry = entries_[key];
      if (InMemory(entry)) {
        std::swap(pending[ready], pending[i]);
        out[ready++] = values_[entry.value].weights;
      } else if (const auto failure = failures_.find(key); failure != failures_.end()) {
        return Fail(failure->second);
      }
    }
    if (ready > 0) {
      if (stalled) {
        stats_.stall_ns +=
            static_cast<uint64_t>((StreamClock::now() - *stalled) / std::chrono::nanoseconds(1));
      }
      return ready;
    }
    if (!stalled) stalled = StreamClock::now();
    landed_.wait(lock);
  }
}

Status StreamedExperts::AcquireNow(size_t layer, std::span<const uint32_t> experts,
                                   std::span<ExpertWeights> out) {
  if (shadows_ == nullptr) {
    std::vector<uint32_t> one(1);
    Request(layer, experts);
    for (size_t i = 0; i < experts.size(); ++i) {
      one[0] = experts[i];
      if (Result<size_t> ready = Acquire(layer, one, out.subspan(i, 1)); !ready) {
        Release(layer, experts);
        return Fail(ready.error());
      }
    }
    return {};
  }
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    CountPass(layer);
    for (size_t i = 0; i < experts.size(); ++i) {
      const ExpertKey key = table_.KeyOf(layer, experts[i]);
      Entry& entry = entries_[key];
      if (InMemory(entry)) {
        Demand(key);
        out[i] = values_[entry.value].weights;
        continue;
      }
      ++stats_.demands;
      ++stats_.shadowed;
      out[i] = shadows_->Get(layer, experts[i]);
      out[i].shadow = true;
      Refill(key);
    }
    DropQueued(layer);
    wake = std::exchange(queued_, false);
  }
  if (wake) fetcher_->Wake();
  return {};
}

// Has an expert read that a shadow has stood in for, unless more wait than the cache could hold.
void StreamedExperts::Refill(ExpertKey key) {
  Entry& entry = entries_[key];
  if (entry.source) AccountOf(*std::exchange(entry.source, std::nullopt)).Late(pass_);
  const bool waits = entry.phase == Phase::kQueued && entry.read_class > kRefill;
  if (entry.phase != Phase::kAbsent && !waits) return;
  if ((queues_[kRefill].size() + 1) * table_.largest_value() > policy_->budget() / 2) return;
  Queue(key, kRefill);
}

void StreamedExperts::Release(size_t layer, std::span<const uint32_t> experts) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    for (const uint32_t expert : experts) {
      const ExpertKey key = table_.KeyOf(layer, expert);
      Entry& entry = entries_[key];
      if (entry.phase == Phase::kResident) policy_->Unpin(key);
      if (--entry.wanted > 0) continue;
      failures_.erase(key);
      if (InMemory(entry)) SetCharge(key, Charge::kNone);
      if (entry.phase == Phase::kPassing) Forget(key);
      // Given up before its read began.
      if (entry.phase == Phase::kQueued) entry.phase = Phase::kAbsent;
    }
    wake = std::exchange(held_back_, false);
  }
  if (wake) fetcher_->Wake();
}

bool StreamedExperts::MayRead(ReadClass read_class, ExpertKey key) {
  const uint64_t bytes = BytesOf(key);
  if (read_class == kDemand) {
    // What is requested fits into the cache altogether, or waits until some of it is released.
    if (wanted_bytes_ == 0 || wanted_bytes_ + bytes <= policy_->budget()) return true;
    held_back_ = true;
    return false;
  }
  return guessed_bytes_ == 0 || guessed_bytes_ + bytes <= policy_->budget() / 8;
}

// Moves queued experts of a class to `keys` while there is room for their reads.
void StreamedExperts::TakeQueued(ReadClass read_class, uint64_t& room,
                                 std::vector<ExpertKey>& keys) {
  std::deque<ExpertKey>& queue = queues_[read_class];
  while (!queue.empty() && room > 0) {
    const ExpertKey key = queue.front();
    Entry& entry = entries_[key];
    if (entry.phase == Phase::kQueued && entry.read_class == read_class) {
      if (!MayRead(read_class, key)) return;
      entry.phase = Phase::kReading;
      SetCharge(key, read_class == kDemand ? Charge::kWanted : Charge::kGuessed);
      if (entry.source) AccountOf(*entry.source).Issued();
      keys.push_back(key);
      room -= std::min(room, BytesOf(key));
    }
    queue.pop_front();
  }
}

void StreamedExperts::NextReads(uint64_t bytes, std::vector<ExpertKey>& keys) {
  const std::lock_guard lock(mutex_);
  uint64_t room = bytes;
  TakeQueued(kDemand, room, keys);
  // Guesses leave half of the room to demands that may come.
  room -= std::min(room, bytes / 2);
  for (const ReadClass read_class : {kTable, kDraft, kRefill, kLookahead, kHistory, kWarm}) {
    TakeQueued(read_class, room, keys);
  }
}

Result<std::byte*> StreamedExperts::TakeMemory(ExpertKey key) {
  const std::lock_guard lock(mutex_);
  return memory_.Take(BytesOf(key));
}

void StreamedExperts::Landed(ExpertKey key, const ExpertValue& value, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (status) {
      Keep(key, value);
    } else {
      LoseRead(key, value, status.error());
    }
    if (entries_[key].wanted == 0) SetCharge(key, Charge::kNone);
  }
  landed_.notify_all();
}

// Puts an expert that has come into the cache. One that finds no room there stays as long as it is
// requested.
void StreamedExperts::Keep(ExpertKey key, const ExpertValue& value) {
  Entry& entry = entries_[key];
  const bool wanted = entry.wanted > 0;
  const bool kept = policy_->Insert(
      key, BytesOf(key), wanted ? FetchReason::kDemand : FetchReason::kPrefetch, evicted_);
  ForgetEvicted();
  if (!kept && !wanted) {
    if (entry.source) AccountOf(*std::exchange(entry.source, std::nullopt)).Wasted(pass_);
    memory_.Give(value.memory, BytesOf(key));
    entry.phase = Phase::kAbsent;
    return;
  }
  if (free_values_.empty()) {
    free_values_.push_back(static_cast<uint32_t>(values_.size()));
    values_.emplace_back();
  }
  entry.value = free_values_.back();
  free_values_.pop_back();
  values_[entry.value] = value;
  entry.phase = kept ? Phase::kResident : Phase::kPassing;
  for (uint32_t i = 0; kept && i < entry.wanted; ++i) policy_->Pin(key);
}

void StreamedExperts::LoseRead(ExpertKey key, const ExpertValue& value, const Error& error) {
  Entry& entry = entries_[key];
  if (value.memory != nullptr) memory_.Give(value.memory, BytesOf(key));
  if (entry.source) AccountOf(*std::exchange(entry.source, std::nullopt)).Wasted(pass_);
  entry.phase = Phase::kAbsent;
  SetCharge(key, Charge::kNone);
  if (entry.wanted > 0) failures_.insert_or_assign(key, error);
}

// Gives the memory of an expert back.
void StreamedExperts::Forget(ExpertKey key) {
  Entry& entry = entries_[key];
  memory_.Give(values_[entry.value].memory, BytesOf(key));
  free_values_.push_back(entry.value);
  if (entry.source) AccountOf(*std::exchange(entry.source, std::nullopt)).Wasted(pass_);
  entry.phase = Phase::kAbsent;
  entry.uses = 0;
}

void StreamedExperts::ForgetEvicted() {
  for (const ExpertKey key : evicted_) Forget(key);
  stats_.evictions += evicted_.size();
  evicted_.clear();
}

std::vector<ExpertKey> StreamedExperts::Hot() const {
  const std::lock_guard lock(mutex_);
  std::vector<ExpertKey> keys;
  for (ExpertKey key = 0; key < entries_.size(); ++key) {
    if (entries_[key].phase == Phase::kResident) keys.push_back(key);
  }
  std::stable_sort(keys.begin(), keys.end(), [this](ExpertKey a, ExpertKey b) {
    return entries_[a].uses > entries_[b].uses;
  });
  return keys;
}

void StreamedExperts::Warm(std::span<const ExpertKey> keys) {
  {
    const std::lock_guard lock(mutex_);
    uint64_t bytes = 0;
    std::vector<ExpertKey> chosen;
    for (const ExpertKey key : keys) {
      if (key >= entries_.size() || table_[key].value_bytes == 0) continue;
      bytes += BytesOf(key);
      if (bytes > policy_->budget()) break;
      if (entries_[key].phase == Phase::kAbsent) chosen.push_back(key);
    }
    // Neighbours share reads.
    std::sort(chosen.begin(), chosen.end());
    for (const ExpertKey key : chosen) Queue(key, kWarm);
    queued_ = false;
  }
  fetcher_->Wake();
}

uint64_t StreamedExperts::resident_bytes() const {
  const std::lock_guard lock(mutex_);
  return budget_ + TableBytes(table_);
}

Status StreamedExperts::SetBudget(uint64_t budget) {
  const uint64_t smallest = SmallestBudget(table_, top_k_);
  if (budget < smallest) return Fail(BudgetError(*file_, budget, smallest));
  const std::lock_guard lock(mutex_);
  budget_ = budget;
  policy_->SetBudget(CacheBytes(table_.largest_record(), budget), evicted_);
  ForgetEvicted();
  memory_.Trim();
  return {};
}

StreamStats StreamedExperts::Stats() const {
  const std::lock_guard lock(mutex_);
  StreamStats stats = stats_;
  stats.budget = budget_;
  stats.cached_bytes = policy_->bytes();
  stats.cached_experts = policy_->count();
  stats.held_bytes = memory_.held_bytes();
  stats.all_bytes = table_.all_values();
  stats.passes = pass_;
  if (shadows_ != nullptr) stats.shadow_bytes = shadows_->resident_bytes();
  stats.policy = policy_->kind();
  stats.uring = uring_;
  for (size_t i = 0; i < kPrefetchSources; ++i) stats.prefetch[i] = accounts_[i].stats();
  const FetchCounters& read = fetcher_->counters();
  stats.reads = read.reads.load(std::memory_order_relaxed);
  stats.read_bytes = read.bytes.load(std::memory_order_relaxed);
  stats.failed_reads = read.failed.load(std::memory_order_relaxed);
  stats.read_ns = read.busy_ns.load(std::memory_order_relaxed);
  stats.direct = read.direct.load(std::memory_order_relaxed);
  return stats;
}

}  // namespace mk
