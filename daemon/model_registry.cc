#include "daemon/model_registry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <utility>

namespace mk::daemon {
namespace {

// Loads and preparations that are under way at once, the one being worked on among them.
constexpr size_t kMaxLoads = 64;

// Reserves what a load is about to allocate.
class Admission {
 public:
  Admission(Ledger& ledger, std::string path) : ledger_(ledger), path_(std::move(path)) {}

  Status Admit(uint64_t bytes) {
    auto memory = ledger_.Reserve(MemoryUse::kModels, bytes);
    if (!memory) {
      refused_bytes_ = bytes;
      return Fail(ErrorCode::kOutOfMemory, path_ + " does not fit into the memory budget",
                  "mk ps shows who holds memory; unload a model, or raise the budget (`mk config "
                  "set memory`)");
    }
    memory_ = std::move(*memory);
    return {};
  }

  Reservation Take() { return std::move(memory_); }
  uint64_t refused_bytes() const { return refused_bytes_; }

 private:
  Ledger& ledger_;
  const std::string path_;
  Reservation memory_;
  uint64_t refused_bytes_ = 0;
};

}  // namespace

uint64_t ModelRegistry::Entry::memory_bytes() const {
  uint64_t bytes = 0;
  for (const Reservation& one : memory) bytes += one.bytes();
  return bytes;
}

std::optional<Clock::time_point> ModelRegistry::Entry::expires() const {
  if (!expendable() || keep_alive.count() < 0) return std::nullopt;
  return last_used + keep_alive;
}

size_t ModelRegistry::Entry::waiting() const {
  size_t count = 0;
  for (const auto& [precision, preparation] : preparing) count += preparation.waiting.size();
  return count;
}

ModelRegistry::ModelRegistry(Ledger& ledger, Metrics& metrics, LoadFunction load,
                             std::function<void(LoadEvent)> post)
    : ledger_(ledger),
      metrics_(metrics),
      load_(std::move(load)),
      post_(std::move(post)),
      loader_("loader", kMaxLoads),
      unloader_("unloader", kMaxLoads) {}

ModelRegistry::~ModelRegistry() {
  Stop();
}

void ModelRegistry::Stop() {
  for (auto& [id, entry] : entries_) {
    for (auto& [precision, preparation] : entry->preparing) {
      if (preparation.give_up) preparation.give_up->store(true);
    }
  }
  loader_.Stop();
  unloader_.Stop();
}

ModelRegistry::Entry* ModelRegistry::FindCurrent(const ModelRef& ref, const FileIdentity& identity,
                                                 Heritage& heritage) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = *(it++)->second;  // Drop() may erase it
    if (entry.superseded || entry.ref != ref) continue;
    if (entry.identity == identity) return &entry;
    // The file is another one now. Those who wait for the old one get what its load gives; those
    // who run on it keep it.
    heritage = {entry.keep_alive, entry.pinned};
    entry.superseded = true;
    if (entry.idle()) Drop(entry.id);
  }
  return nullptr;
}

ModelRegistry::Entry* ModelRegistry::AddEntry(const ModelRef& ref, const FileIdentity& identity,
                                              const Heritage& heritage) {
  auto made = std::make_unique<Entry>();
  made->id = next_id_++;
  made->ref = ref;
  made->identity = identity;
  made->keep_alive = heritage.keep_alive.value_or(keep_alive_);
  made->pinned = heritage.pinned;
  return entries_.emplace(made->id, std::move(made)).first->second.get();
}

// Those that have a task, and those that will have one when their model is there.
size_t ModelRegistry::LoadsUnderWay() const {
  size_t count = tasks_;
  for (const auto& [id, entry] : entries_) {
    for (const auto& [precision, preparation] : entry->preparing) {
      if (!preparation.give_up) ++count;
    }
  }
  return count;
}

Result<ModelRegistry::Entry*> ModelRegistry::Acquire(
    const ModelRef& ref, Precision precision, uint64_t request,
    std::optional<std::chrono::milliseconds> keep_alive, const protocol::StreamWish& stream) {
  auto opened = OpenForReading(ref.path);
  if (!opened) return Fail(opened.error());
  Heritage heritage;
  Entry* entry = FindCurrent(ref, opened->identity, heritage);
  if (entry != nullptr && entry->idle() && Contradicts(stream, *entry->loaded->model)) {
    heritage = {entry->keep_alive, entry->pinned};
    Drop(entry->id);
    entry = nullptr;
  }
  const bool known =
      entry != nullptr &&
      (entry->Holds(precision) || entry->preparing.find(precision) != entry->preparing.end());
  if (!known && LoadsUnderWay() >= kMaxLoads) {
    return Fail(ErrorCode::kOutOfMemory, "too many models are waiting to be loaded",
                "try again when some are done");
  }
  if (entry == nullptr) {
    entry = AddEntry(ref, opened->identity, heritage);
    entry->stream = WithWish(stream_, stream);
  }
  if (keep_alive) entry->keep_alive = *keep_alive;
  entry->last_used = Clock::now();
  if (entry->Holds(precision)) {
    entry->users.insert(request);
  } else {
    entry->preparing[precision].waiting.insert(request);
    StartTasks(*entry);
  }
  return entry;
}

void ModelRegistry::StartTasks(Entry& entry) {
  for (auto& [precision, preparation] : entry.preparing) {
    if (!preparation.give_up && entry.loaded) StartTask(entry, precision, preparation);
  }
  if (entry.loaded || entry.preparing.empty()) return;
  // The model comes first, with one precision.
  for (const auto& [precision, preparation] : entry.preparing) {
    if (preparation.give_up) return;
  }
  StartTask(entry, entry.preparing.begin()->first, entry.preparing.begin()->second);
}

LoadOptions ModelRegistry::OptionsOf(uint64_t id, Precision precision,
                                     std::shared_ptr<const std::atomic<bool>> give_up) const {
  LoadOptions options;
  options.precision = precision;
  options.threads = threads_;
  options.spine_cache = spine_cache_;
  options.progress = [post = post_, id, precision, give_up = std::move(give_up),
                      reported = 0.0](double fraction) mutable {
    if (fraction - reported >= 0.01) {
      reported = fraction;
      post(LoadProgress{id, precision, fraction});
    }
    return !give_up->load();
  };
  return options;
}

// Streams what is to be streamed, with three quarters of what is free or could be freed.
void ModelRegistry::SetStreamOf(const Entry& entry, LoadOptions& options) const {
  if (entry.stream.mode == StreamMode::kOff) return;
  options.stream = entry.stream.options;
  options.hot_set_folder = entry.stream.hot_set_folder;
  // Those that `mk shadow` puts beside the model.
  std::error_code none;
  const std::string shadows = entry.ref.path + ".shadows";
  if (std::filesystem::exists(shadows, none)) options.stream->shadows = shadows;
  if (entry.stream.mode == StreamMode::kAuto) options.stream_above = ledger_.budget();
  options.stream_room = (ledger_.available() + Expendable()) / 4 * 3;
}

void ModelRegistry::StartTask(Entry& entry, Precision precision, Preparation& preparation) {
  preparation.give_up = std::make_shared<std::atomic<bool>>(false);
  preparation.progress = 0;
  LoadOptions chosen = OptionsOf(entry.id, precision, preparation.give_up);
  SetStreamOf(entry, chosen);
  auto task = [this, id = entry.id, ref = entry.ref, loaded = entry.loaded, precision,
               give_up = preparation.give_up, options = std::move(chosen)] {
    Admission admission(ledger_, ref.path);
    LoadOptions admitted = options;
    admitted.admit = [&admission](uint64_t bytes) { return admission.Admit(bytes); };
    const auto work = [&]() -> Result<LoadFinished::Gain> {
      if (give_up->load()) {
        return Fail(ErrorCode::kCancelled, "loading " + ref.path + " was cancelled");
      }
      if (loaded) {
        if (auto status = loaded->model->Prepare(precision, admitted); !status) {
          return Fail(status.error());
        }
        return LoadFinished::Gain{nullptr, admission.Take()};
      }
      auto made = load_(ref, admitted);
      if (!made) return Fail(made.error());
      return LoadFinished::Gain{std::make_shared<const LoadedModel>(std::move(*made)),
                                admission.Take()};
    };
    const auto begin = Clock::now();
    auto result = work();
    if (result) metrics_.Observe(Distribution::kLoadTime, Clock::now() - begin);
    post_(LoadFinished{id, precision, std::move(result), admission.refused_bytes()});
  };
  // There is room for all that Acquire admits; a loader that was stopped needs no more tasks.
  if (loader_.Post(std::move(task))) ++tasks_;
}

void ModelRegistry::Release(uint64_t request) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = *(it++)->second;  // Drop() may erase it
    bool was_here = entry.users.erase(request) > 0;
    if (was_here) entry.last_used = Clock::now();
    for (auto one = entry.preparing.begin(); one != entry.preparing.end();) {
      Preparation& preparation = one->second;
      const bool left = preparation.waiting.erase(request) > 0;
      was_here = was_here || left;
      if (left && preparation.waiting.empty() && !preparation.give_up) {
        one = entry.preparing.erase(one);
        continue;
      }
      // Whoever comes before its task has ended makes it start over.
      if (left && preparation.waiting.empty()) preparation.give_up->store(true);
      ++one;
    }
    if (was_here && entry.superseded && entry.idle()) Drop(entry.id);
  }
}

void ModelRegistry::OnProgress(const LoadProgress& progress) {
  Entry* entry = Find(progress.model);
  if (entry == nullptr) return;
  const auto found = entry->preparing.find(progress.precision);
  if (found != entry->preparing.end()) found->second.progress = progress.fraction;
}

ModelRegistry::Outcome ModelRegistry::OnFinished(LoadFinished finished) {
  --tasks_;
  Entry* entry = Find(finished.model);
  if (entry == nullptr) return {};  // unloaded meanwhile; what came goes with the event
  auto node = entry->preparing.extract(finished.precision);
  Preparation ended = node.empty() ? Preparation{} : std::move(node.mapped());
  if (!finished.result) {
    auto outcome = OnFailed(*entry, finished.precision, std::move(ended), finished.result.error());
    outcome.refused_bytes = finished.refused_bytes;
    return outcome;
  }
  TakeGain(*entry, finished.precision, std::move(*finished.result));
  entry->users.insert(ended.waiting.begin(), ended.waiting.end());
  StartTasks(*entry);
  Outcome outcome;
  if (entry->superseded && entry->idle()) {
    Drop(entry->id);
    return outcome;
  }
  outcome.requests.assign(ended.waiting.begin(), ended.waiting.end());
  outcome.entry = entry;
  return outcome;
}

void ModelRegistry::TakeGain(Entry& entry, Precision precision, LoadFinished::Gain gain) {
  const std::string_view name = PrecisionName(precision);
  const uint64_t mebibytes = gain.memory.bytes() >> 20;
  entry.memory.push_back(std::move(gain.memory));
  entry.last_used = Clock::now();
  if (!gain.model) {
    metrics_.Add(Counter::kPrecisionsPrepared);
    spdlog::info("prepared {} for {} ({} MiB more{})", entry.ref.path, name, mebibytes,
                 entry.loaded->model->spine_cached(precision) ? ", from the spine cache" : "");
    return;
  }
  entry.loaded = std::move(gain.model);
  metrics_.Add(Counter::kModelsLoaded);
  spdlog::info("loaded {} for {} ({} MiB resident{}{})", entry.ref.path, name, mebibytes,
               entry.loaded->model->stream_stats() ? ", experts streamed" : "",
               entry.loaded->model->spine_cached(precision) ? ", from the spine cache" : "");
  for (const auto& warning : entry.loaded->warnings) spdlog::warn("{}", warning);
}

// A load or a preparation gave nothing. The entry is as it was before it.
ModelRegistry::Outcome ModelRegistry::OnFailed(Entry& entry, Precision precision, Preparation ended,
                                               const Error& error) {
  Outcome outcome;
  const bool cancelled = error.code == ErrorCode::kCancelled;
  if (cancelled && !ended.waiting.empty()) {
    // Its last request had left; others came before it was over.
    ended.give_up.reset();
    entry.preparing.emplace(precision, std::move(ended));
    StartTasks(entry);
    return outcome;
  }
  outcome.error = error;
  if (!cancelled) metrics_.Add(Counter::kLoadsFailed);
  outcome.requests.assign(ended.waiting.begin(), ended.waiting.end());
  if (!cancelled) {
    // The reason may lie in a vocabulary that was named for it; the error names the file.
    spdlog::warn("{} was not loaded for {}: {}", entry.ref.path, PrecisionName(precision),
                 error.ToString());
  }
  if (!entry.loaded && !cancelled && error.code != ErrorCode::kOutOfMemory) {
    // What is wrong with the file is wrong in every precision.
    for (const auto& [other, preparation] : entry.preparing) {
      outcome.requests.insert(outcome.requests.end(), preparation.waiting.begin(),
                              preparation.waiting.end());
    }
    entry.preparing.clear();
  }
  StartTasks(entry);
  if (!entry.loaded && entry.preparing.empty()) {
    entries_.erase(entry.id);
  } else if (entry.superseded && entry.idle()) {
    Drop(entry.id);
  }
  return outcome;
}

Status ModelRegistry::Unload(const ModelRef& ref) {
  Entry* entry = FindLoaded(ref);
  if (entry == nullptr) {
    return Fail(ErrorCode::kNotFound, ref.path + " is not loaded", "mk ps shows what is");
  }
  if (!entry->idle()) {
    return Fail(ErrorCode::kIncompatible,
                ref.path + " is in use by " +
                    std::to_string(entry->users.size() + entry->waiting()) + " request(s)",
                "cancel them or wait until they are done");
  }
  Drop(entry->id);
  return {};
}

size_t ModelRegistry::UnloadIdle(Pinned pinned) {
  std::vector<uint64_t> idle;
  for (const auto& [id, entry] : entries_) {
    if (entry->expendable() || (entry->idle() && pinned == Pinned::kGo)) idle.push_back(id);
  }
  for (const uint64_t id : idle) Drop(id);
  return idle.size();
}

std::vector<ModelRegistry::Entry*> ModelRegistry::ExpendableByAge() const {
  std::vector<Entry*> expendable;
  for (const auto& [id, entry] : entries_) {
    if (entry->expendable()) expendable.push_back(entry.get());
  }
  std::stable_sort(expendable.begin(), expendable.end(),
                   [](const Entry* a, const Entry* b) { return a->last_used < b->last_used; });
  return expendable;
}

uint64_t ModelRegistry::Expendable() const {
  uint64_t bytes = 0;
  for (const Entry* entry : ExpendableByAge()) bytes += entry->memory_bytes();
  return bytes;
}

bool ModelRegistry::MakeRoom(uint64_t bytes) {
  if (ledger_.Missing(bytes) > Expendable()) return false;
  for (const Entry* entry : ExpendableByAge()) {
    if (ledger_.Missing(bytes) == 0) break;
    Drop(entry->id);
  }
  return true;
}

uint64_t ModelRegistry::KeptBeside(uint64_t request) const {
  uint64_t bytes = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry->pinned || entry->users.count(request) > 0) bytes += entry->memory_bytes();
  }
  return bytes;
}

std::optional<Clock::time_point> ModelRegistry::UnloadExpired(Clock::time_point now) {
  std::optional<Clock::time_point> next;
  std::vector<uint64_t> expired;
  for (const auto& [id, entry] : entries_) {
    const auto due = entry->expires();
    if (!due) continue;
    if (*due <= now) {
      expired.push_back(id);
    } else if (!next || *due < *next) {
      next = due;
    }
  }
  for (const uint64_t id : expired) Drop(id);
  return next;
}

// Freeing gigabytes takes its time: a thread of its own does it. The budget has them back at once.
void ModelRegistry::Drop(uint64_t id) {
  const auto it = entries_.find(id);
  spdlog::info("unloading {}", it->second->ref.path);
  metrics_.Add(Counter::kModelsUnloaded);
  auto loaded = std::move(it->second->loaded);
  entries_.erase(it);  // and with it the reservations
  // A full queue leaves the copy in `loaded`, and it is freed here.
  unloader_.Post([held = std::move(loaded)]() mutable { held.reset(); });
}

ModelRegistry::Entry* ModelRegistry::Find(uint64_t id) {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : it->second.get();
}

ModelRegistry::Entry* ModelRegistry::FindLoaded(const ModelRef& ref) {
  for (auto& [id, entry] : entries_) {
    if (entry->ref == ref && entry->loaded && !entry->superseded) return entry.get();
  }
  return nullptr;
}

}  // namespace mk::daemon
