// The models in memory: who uses them, which are on their way, which may go.
//
// A model is known by its canonical path and the identity of the file (device, inode, size, time of
// change), so a file that changed on disk is a new model; requests that run end on the old one. It
// is loaded once, on the loader's thread, however many requests wait for it, and unloaded when
// nobody has used it for its keep_alive.
//
// The registry belongs to the I/O thread; only the loads run elsewhere and report through `post`.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "daemon/counters.h"
#include "daemon/ledger.h"
#include "daemon/step_task.h"
#include "daemon/task_thread.h"
#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk::daemon {

// What a load gives. The tokenizer may be missing: a model can be run on token ids alone.
struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  Error tokenizer_error;  // why there is none
  std::vector<std::string> warnings;
  Reservation memory;  // moves into the registry's entry
};

// A model and the vocabulary files that were named for it (empty: those beside it).
struct ModelRef {
  std::string path;  // canonical
  std::string vocab_path;
  std::string rank_path;
  bool operator==(const ModelRef&) const = default;
};

using LoadFunction =
    std::function<Result<LoadedModel>(const ModelRef& ref, const LoadOptions& options)>;
// Opens model and tokenizer with the engine.
Result<LoadedModel> LoadWithEngine(const ModelRef& ref, const LoadOptions& options);

struct LoadProgress {
  uint64_t model = 0;  // id in the registry
  double fraction = 0;
};
struct LoadFinished {
  uint64_t model = 0;
  // Shared because events are copied into queues of copyable values; there is one owner.
  std::shared_ptr<Result<LoadedModel>> result;
};
using LoadEvent = std::variant<LoadProgress, LoadFinished>;

class ModelRegistry {
 public:
  struct Entry {
    uint64_t id = 0;
    ModelRef ref;
    FileIdentity identity;
    std::shared_ptr<const LoadedModel> loaded;   // null while loading
    Reservation memory;                          // what the loaded model holds
    std::shared_ptr<std::atomic<bool>> give_up;  // tells the load to end
    double progress = 0;
    std::set<uint64_t> waiting;  // requests that wait for the load
    std::set<uint64_t> users;    // requests that hold the model
    std::chrono::milliseconds keep_alive{0};
    Clock::time_point last_used;
    bool superseded = false;  // the file changed: goes with its last user
  };

  // `post` hands events to the I/O thread, from the loader's thread.
  ModelRegistry(Ledger& ledger, Counters& counters, LoadFunction load,
                std::function<void(LoadEvent)> post);
  ~ModelRegistry();

  void SetKeepAlive(std::chrono::milliseconds keep_alive) { keep_alive_ = keep_alive; }
  void SetThreads(int threads) { threads_ = threads; }

  // The model, loaded or on its way, with `request` among its users or its waiters. Errors: those
  // of opening the file; kOutOfMemory when too many loads wait.
  Result<Entry*> Acquire(const ModelRef& ref, uint64_t request,
                         std::optional<std::chrono::milliseconds> keep_alive = std::nullopt);
  // The request needs the model no more (or waits for it no more: the last one to leave a load
  // ends it).
  void Release(uint64_t request);

  void OnProgress(const LoadProgress& progress);
  // Requests that waited; on success they are users of the entry now. `error` tells the failure.
  struct Outcome {
    std::vector<uint64_t> requests;
    Entry* entry = nullptr;  // null after a failure
    std::optional<Error> error;
  };
  Outcome OnFinished(LoadFinished finished);

  // Unloads one that nobody uses. Errors: kNotFound (not loaded), kIncompatible (in use).
  Status Unload(const ModelRef& ref);
  // Unloads every model that nobody uses; the number of them.
  size_t UnloadIdle();
  // Unloads what has been idle for its keep_alive. Returns when the next one is due.
  std::optional<Clock::time_point> UnloadExpired(Clock::time_point now);

  const std::map<uint64_t, std::unique_ptr<Entry>>& entries() const { return entries_; }
  Entry* Find(uint64_t id);
  Entry* FindLoaded(const ModelRef& ref);
  // Ends loads; nothing is posted after it returns.
  void Stop();

 private:
  Entry* FindCurrent(const ModelRef& ref, const FileIdentity& identity);
  Status StartLoad(Entry& entry);
  void Drop(uint64_t id);

  Ledger& ledger_;
  Counters& counters_;
  const LoadFunction load_;
  const std::function<void(LoadEvent)> post_;
  std::chrono::milliseconds keep_alive_{std::chrono::minutes(10)};
  int threads_ = 1;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::unique_ptr<Entry>> entries_;
  TaskThread loader_;
  TaskThread unloader_;
};

}  // namespace mk::daemon
