#include "daemon/model_registry.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

namespace mk::daemon {
namespace {

constexpr size_t kMaxLoadsWaiting = 64;
constexpr const char* kMoreMemory = "unload a model, or start the daemon with more --memory";

// Loads, then books what the model holds; what does not fit is dropped again at once.
Result<LoadedModel> LoadAndReserve(const LoadFunction& load, const ModelRef& ref, Ledger& ledger,
                                   LoadOptions options) {
  options.memory_limit = std::max<uint64_t>(ledger.available(), 1);
  auto loaded = load(ref, options);
  if (!loaded) {
    if (loaded.error().code == ErrorCode::kOutOfMemory) loaded.error().hint = kMoreMemory;
    return loaded;
  }
  const uint64_t bytes = loaded->model->resident_bytes();
  auto memory = ledger.Reserve(MemoryUse::kModels, bytes);
  if (!memory) {
    return Fail(ErrorCode::kOutOfMemory,
                ref.path + " needs " + std::to_string(bytes >> 20) + " MiB, " +
                    std::to_string(ledger.available() >> 20) + " MiB of the memory budget are free",
                kMoreMemory);
  }
  loaded->memory = std::move(*memory);
  return loaded;
}

}  // namespace

ModelRegistry::ModelRegistry(Ledger& ledger, Counters& counters, LoadFunction load,
                             std::function<void(LoadEvent)> post)
    : ledger_(ledger),
      counters_(counters),
      load_(std::move(load)),
      post_(std::move(post)),
      loader_("loader", kMaxLoadsWaiting),
      unloader_("unloader", kMaxLoadsWaiting) {}

ModelRegistry::~ModelRegistry() {
  Stop();
}

void ModelRegistry::Stop() {
  for (auto& [id, entry] : entries_) entry->give_up->store(true);
  loader_.Stop();
  unloader_.Stop();
}

ModelRegistry::Entry* ModelRegistry::FindCurrent(const ModelRef& ref,
                                                 const FileIdentity& identity) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = *(it++)->second;  // Drop() may erase it
    if (entry.superseded || entry.ref != ref) continue;
    if (entry.identity == identity) return &entry;
    // The file is another one now. Those who wait for the old one get what its load gives; those
    // who run on it keep it.
    entry.superseded = true;
    if (entry.loaded && entry.users.empty()) Drop(entry.id);
  }
  return nullptr;
}

Result<ModelRegistry::Entry*> ModelRegistry::Acquire(
    const ModelRef& ref, uint64_t request, std::optional<std::chrono::milliseconds> keep_alive) {
  auto opened = OpenForReading(ref.path);
  if (!opened) return Fail(opened.error());
  Entry* entry = FindCurrent(ref, opened->identity);
  if (entry == nullptr) {
    auto made = std::make_unique<Entry>();
    made->id = next_id_++;
    made->ref = ref;
    made->identity = opened->identity;
    made->give_up = std::make_shared<std::atomic<bool>>(false);
    made->keep_alive = keep_alive_;
    entry = made.get();
    entries_.emplace(entry->id, std::move(made));
    if (auto status = StartLoad(*entry); !status) {
      entries_.erase(entry->id);
      return Fail(status.error());
    }
  }
  if (keep_alive) entry->keep_alive = *keep_alive;
  entry->last_used = Clock::now();
  (entry->loaded != nullptr ? entry->users : entry->waiting).insert(request);
  return entry;
}

Status ModelRegistry::StartLoad(Entry& entry) {
  auto task = [this, id = entry.id, ref = entry.ref, give_up = entry.give_up, threads = threads_] {
    LoadOptions options;
    options.threads = threads;
    double reported = 0;
    options.progress = [&](double fraction) {
      if (fraction - reported >= 0.01) {
        reported = fraction;
        post_(LoadProgress{id, fraction});
      }
      return !give_up->load();
    };
    auto result = std::make_shared<Result<LoadedModel>>(
        give_up->load() ? Fail(ErrorCode::kCancelled, "loading " + ref.path + " was cancelled")
                        : LoadAndReserve(load_, ref, ledger_, options));
    post_(LoadFinished{id, std::move(result)});
  };
  if (!loader_.Post(std::move(task))) {
    return Fail(ErrorCode::kOutOfMemory, "too many models are waiting to be loaded",
                "try again when some are done");
  }
  return {};
}

void ModelRegistry::Release(uint64_t request) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = *(it++)->second;  // Drop() may erase it
    if (entry.waiting.erase(request) > 0 && entry.waiting.empty() && !entry.loaded) {
      entry.give_up->store(true);
      entry.superseded = true;  // a request that comes now starts a load of its own
    }
    if (entry.users.erase(request) > 0) {
      entry.last_used = Clock::now();
      if (entry.users.empty() && entry.superseded) Drop(entry.id);
    }
  }
}

void ModelRegistry::OnProgress(const LoadProgress& progress) {
  if (Entry* entry = Find(progress.model)) entry->progress = progress.fraction;
}

ModelRegistry::Outcome ModelRegistry::OnFinished(LoadFinished finished) {
  Outcome outcome;
  Entry* entry = Find(finished.model);
  if (entry == nullptr) return outcome;
  outcome.requests.assign(entry->waiting.begin(), entry->waiting.end());
  if (!*finished.result) {
    outcome.error = finished.result->error();
    if (outcome.error->code != ErrorCode::kCancelled) {
      // The reason may lie in a vocabulary that was named for it; the error names the file.
      spdlog::warn("{} was not loaded: {}", entry->ref.path, outcome.error->ToString());
    }
    entries_.erase(entry->id);
    return outcome;
  }
  entry->memory = std::move((*finished.result)->memory);
  entry->loaded = std::make_shared<const LoadedModel>(std::move(**finished.result));
  entry->users.insert(entry->waiting.begin(), entry->waiting.end());
  entry->waiting.clear();
  entry->progress = 1;
  entry->last_used = Clock::now();
  counters_.Add(Counter::kModelsLoaded);
  spdlog::info("loaded {} ({} MiB resident)", entry->ref.path,
               entry->loaded->model->resident_bytes() >> 20);
  for (const auto& warning : entry->loaded->warnings) spdlog::warn("{}", warning);
  if (entry->users.empty() && entry->superseded) {
    Drop(entry->id);
    return outcome;
  }
  outcome.entry = entry;
  return outcome;
}

Status ModelRegistry::Unload(const ModelRef& ref) {
  Entry* entry = FindLoaded(ref);
  if (entry == nullptr) {
    return Fail(ErrorCode::kNotFound, ref.path + " is not loaded", "mk status shows what is");
  }
  if (!entry->users.empty()) {
    return Fail(ErrorCode::kIncompatible,
                ref.path + " is in use by " + std::to_string(entry->users.size()) + " request(s)",
                "cancel them or wait until they are done");
  }
  Drop(entry->id);
  return {};
}

size_t ModelRegistry::UnloadIdle() {
  std::vector<uint64_t> idle;
  for (const auto& [id, entry] : entries_) {
    if (entry->loaded && entry->users.empty()) idle.push_back(id);
  }
  for (const uint64_t id : idle) Drop(id);
  return idle.size();
}

std::optional<Clock::time_point> ModelRegistry::UnloadExpired(Clock::time_point now) {
  std::optional<Clock::time_point> next;
  std::vector<uint64_t> expired;
  for (const auto& [id, entry] : entries_) {
    if (!entry->loaded || !entry->users.empty() || entry->keep_alive.count() < 0) continue;
    const auto due = entry->last_used + entry->keep_alive;
    if (due <= now) {
      expired.push_back(id);
    } else if (!next || due < *next) {
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
  counters_.Add(Counter::kModelsUnloaded);
  auto loaded = std::move(it->second->loaded);
  entries_.erase(it);  // and with it the reservation
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
