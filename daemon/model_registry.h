// The models in memory: who uses them, which are on their way, which may go.
//
// A model is known by its canonical path and the identity of the file (device, inode, size, time of
// change), so a file that changed on disk is a new model; requests that run end on the old one. It
// is loaded once, on the loader's thread, however many requests wait for it, and unloaded when
// nobody has used it for its keep_alive, or when others need the room. A pinned one stays until it
// is unloaded by name; when its file is replaced, the new one is pinned in its place.
//
// Memory is reserved in the ledger before it is allocated, and given back with the model.
//
// A request needs a model in one precision. The first one comes with the model; a loaded model that
// lacks one is prepared for it on the loader's thread, while requests of its other precisions run.
// When requests of several precisions wait for a first load, it reads one of them, and the others
// follow.
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

#include "daemon/expert_counter.h"
#include "daemon/ledger.h"
#include "daemon/metrics.h"
#include "daemon/prefix_cache.h"
#include "daemon/sessions/session_states.h"
#include "daemon/step_task.h"
#include "daemon/stream_wish.h"
#include "daemon/task_thread.h"
#include "engine/base/file.h"
#include "engine/base/result.h"
#include "engine/model/model.h"
#include "engine/speculate/pass_costs.h"
#include "engine/tokenizer/tokenizer.h"

namespace mk::daemon {

// What a load gives. The tokenizer may be missing: a model can be run on token ids alone.
struct LoadedModel {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  Error tokenizer_error;  // why there is none
  std::vector<std::string> warnings;
  // How long its forward passes take, [kPrecisions]: the scheduler's thread learns it. Empty: every
  // run does by itself.
  std::vector<std::shared_ptr<PassCosts>> pass_costs;
  // These go before the model does.
  std::shared_ptr<PrefixShelf> prefixes;   // may be null
  std::shared_ptr<SessionShelf> sessions;  // null: nobody runs in sessions
  std::shared_ptr<ExpertCounter> experts;  // of all its runs; null: they are not counted
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
  Precision precision = Precision::kExact;
  double fraction = 0;
};
struct LoadFinished {
  struct Gain {
    std::shared_ptr<const LoadedModel> model;  // null: the model was there, the precision is new
    Reservation memory;                        // what came with it
  };
  uint64_t model = 0;
  Precision precision = Precision::kExact;
  Result<Gain> result;
  uint64_t refused_bytes = 0;  // that it needed and the budget had not; 0: it failed otherwise
};
using LoadEvent = std::variant<LoadProgress, LoadFinished>;

class ModelRegistry {
 public:
  // A precision on its way. While the model itself is not there, one of them has a task.
  struct Preparation {
    std::set<uint64_t> waiting;                  // requests
    std::shared_ptr<std::atomic<bool>> give_up;  // tells the task to end; null: it has none yet
    double progress = 0;
  };
  struct Entry {
    uint64_t id = 0;
    ModelRef ref;
    FileIdentity identity;
    std::shared_ptr<const LoadedModel> loaded;  // null while loading
    std::vector<Reservation> memory;            // of the model, and of each precision added to it
    bool pinned = false;
    std::map<Precision, Preparation> preparing;
    std::set<uint64_t> users;  // requests that hold the model
    std::chrono::milliseconds keep_alive{0};
    Clock::time_point last_used;
    bool superseded = false;  // the file changed: goes with its last user
    StreamSettings stream;    // how it is loaded

    bool Holds(Precision precision) const { return loaded && loaded->model->prepared(precision); }
    size_t waiting() const;
    // Loaded, and nobody uses it or waits for a precision of it.
    bool idle() const { return loaded && users.empty() && waiting() == 0; }
    // Whether it may go to make room for others.
    bool expendable() const { return idle() && !pinned; }
    uint64_t memory_bytes() const;
    // When it goes if nobody uses it before; none: not by itself.
    std::optional<Clock::time_point> expires() const;
  };

  // `post` hands events to the I/O thread, from the loader's thread.
  ModelRegistry(Ledger& ledger, Metrics& metrics, LoadFunction load,
                std::function<void(LoadEvent)> post);
  ~ModelRegistry();

  void SetKeepAlive(std::chrono::milliseconds keep_alive) { keep_alive_ = keep_alive; }
  void SetThreads(int threads) { threads_ = threads; }
  // Of loads from now on.
  void SetSpineCache(SpineCacheOptions options) { spine_cache_ = std::move(options); }
  void SetStream(const StreamSettings& settings) { stream_ = settings; }

  // The model, with `request` among its users if it holds the precision, else among those that wait
  // for it. `stream`: how it is loaded if it is not loaded; a loaded one that contradicts it and
  // has no users is loaded again. Errors: those of opening the file; kOutOfMemory when too many
  // loads wait.
  Result<Entry*> Acquire(const ModelRef& ref, Precision precision, uint64_t request,
                         std::optional<std::chrono::milliseconds> keep_alive = std::nullopt,
                         const protocol::StreamWish& stream = {});
  // The request needs the model no more (or waits for it no more: the last one to leave a load
  // ends it).
  void Release(uint64_t request);

  void OnProgress(const LoadProgress& progress);
  // The requests whose wait is over. Without an error they may start: they are users of the entry
  // now. Others may still wait for another precision of it.
  struct Outcome {
    std::vector<uint64_t> requests;
    Entry* entry = nullptr;  // null after an error
    std::optional<Error> error;
    uint64_t refused_bytes = 0;  // see LoadFinished
  };
  Outcome OnFinished(LoadFinished finished);

  // Unloads one that nobody uses. Errors: kNotFound (not loaded), kIncompatible (in use).
  Status Unload(const ModelRef& ref);
  // Unloads every model that nobody uses; the number of them.
  enum class Pinned { kStay, kGo };
  size_t UnloadIdle(Pinned pinned = Pinned::kStay);
  // Frees so many bytes of the budget by unloading expendable models, the one that was used longest
  // ago first. False: all of them would not do, and none was unloaded.
  bool MakeRoom(uint64_t bytes);
  // Bytes that expendable models hold.
  uint64_t Expendable() const;
  // Bytes that stay as long as the request does: of pinned models, and of what it uses.
  uint64_t KeptBeside(uint64_t request) const;
  // Unloads what has been idle for its keep_alive. Returns when the next one is due.
  std::optional<Clock::time_point> UnloadExpired(Clock::time_point now);

  const std::map<uint64_t, std::unique_ptr<Entry>>& entries() const { return entries_; }
  Entry* Find(uint64_t id);
  Entry* FindLoaded(const ModelRef& ref);
  // Ends loads; nothing is posted after it returns.
  void Stop();

 private:
  // What a model has from the one whose file it replaced.
  struct Heritage {
    std::optional<std::chrono::milliseconds> keep_alive;
    bool pinned = false;
  };
  Entry* FindCurrent(const ModelRef& ref, const FileIdentity& identity, Heritage& heritage);
  Entry* AddEntry(const ModelRef& ref, const FileIdentity& identity, const Heritage& heritage);
  std::vector<Entry*> ExpendableByAge() const;
  size_t LoadsUnderWay() const;
  void StartTasks(Entry& entry);
  void StartTask(Entry& entry, Precision precision, Preparation& preparation);
  void SetStreamOf(const Entry& entry, LoadOptions& options) const;
  LoadOptions OptionsOf(uint64_t id, Precision precision,
                        std::shared_ptr<const std::atomic<bool>> give_up) const;
  void TakeGain(Entry& entry, Precision precision, LoadFinished::Gain gain);
  Outcome OnFailed(Entry& entry, Precision precision, Preparation ended, const Error& error);
  void Drop(uint64_t id);

  Ledger& ledger_;
  Metrics& metrics_;
  const LoadFunction load_;
  const std::function<void(LoadEvent)> post_;
  std::chrono::milliseconds keep_alive_{std::chrono::minutes(10)};
  int threads_ = 1;
  SpineCacheOptions spine_cache_;
  StreamSettings stream_;
  uint64_t next_id_ = 1;
  size_t tasks_ = 0;  // posted to the loader and not reported yet
  std::map<uint64_t, std::unique_ptr<Entry>> entries_;
  TaskThread loader_;
  TaskThread unloader_;
};

}  // namespace mk::daemon
