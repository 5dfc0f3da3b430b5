// EngineAccess: what jobs ask of the daemon to run models: a model that is loaded, runs beside
// those of requests, and the executor for themselves.
//
// The calls of jobs block their own thread, until they have what they asked for, it cannot be had,
// or the job is cancelled.

#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "daemon/core.h"
#include "daemon/jobs/job_kind.h"
#include "daemon/model_service.h"

namespace mk::daemon {

// A model that is kept loaded as long as this lives.
class ModelLease {
 public:
  ModelLease(std::shared_ptr<const LoadedModel> loaded, std::shared_ptr<void> held)
      : loaded_(std::move(loaded)), held_(std::move(held)) {}
  const std::shared_ptr<const LoadedModel>& loaded() const { return loaded_; }

 private:
  std::shared_ptr<const LoadedModel> loaded_;
  std::shared_ptr<void> held_;  // gives it back when it goes
};

class EngineAccess {
 public:
  EngineAccess(Core& core, ModelService& models);

  // On a job's thread. Loads the model if it is not there; tells `context` how far that is.
  // Errors: those of loading; kCancelled.
  protocol::Result<ModelLease> Acquire(const ModelRef& ref, Precision precision,
                                       JobContext& context,
                                       const protocol::StreamWish& stream = {});
  // On a job's thread. Does `work` on the scheduler's thread, while nothing else runs there, after
  // `state_bytes` have been reserved. Returns when it is over. Errors: the work's, kOutOfMemory,
  // kBusy, kCancelled.
  protocol::Result<protocol::Body> RunAlone(ExclusiveWork work, uint64_t state_bytes,
                                            JobContext& context);

  // On a job's thread. Runs beside requests, in the background; `look` is called meanwhile, on this
  // thread. What the run left when it came to its end; null: nothing. Errors: the run's,
  // kOutOfMemory, kBusy, kCancelled.
  using Look = std::function<void(const RequestControl& control)>;
  protocol::Result<SharedState> RunBeside(PreparedRun run, JobContext& context, const Look& look);
  // On a job's thread. The same for several at once, which share forward passes. Their last
  // messages, in order. Errors: the first one of any; the others are ended then.
  protocol::Result<std::vector<protocol::Body>> RunTogether(std::vector<PreparedRun> runs,
                                                            JobContext& context);
  // On a job's thread. Room for a state, when idle models had to go for it, too. Errors:
  // kOutOfMemory, kCancelled.
  protocol::Result<Reservation> Reserve(uint64_t bytes, JobContext& context);
  // On a job's thread. Does it on the thread for states, and returns when it is done; not at all
  // when too many wait there.
  void OnStatesThread(const std::function<void()>& work);

  // On the loop's thread: what the scheduler tells. False: it is about a request.
  bool OnSchedulerEvent(SchedulerEvent& event);

 private:
  struct Load;
  struct Piece;

  void BeginLoad(uint64_t key, const ModelRef& ref, Precision precision,
                 const std::shared_ptr<Load>& load);
  void OnLoaded(uint64_t key, ModelRegistry::Entry* entry, const Error* error);
  void MakeRoom(Piece& piece, const RequestNeedsRoom& needs);
  void Begin(uint64_t key, const std::shared_ptr<Piece>& piece);
  static ExclusiveWork WorkOf(const std::shared_ptr<Piece>& piece);
  static std::shared_ptr<Piece> PieceBeside(PreparedRun run);
  void Post(const std::shared_ptr<Piece>& piece);
  protocol::Result<protocol::Body> Await(const std::shared_ptr<Piece>& piece, JobContext& context,
                                         const Look& look);

  Core& core_;
  // Users of models that are no requests have numbers of their own.
  static constexpr uint64_t kFirstKey = uint64_t{1} << 63;
  std::atomic<uint64_t> next_key_{kFirstKey};
  // The loop's thread alone.
  std::map<uint64_t, std::shared_ptr<Load>> loads_;
  std::map<uint64_t, std::shared_ptr<Piece>> pieces_;
};

}  // namespace mk::daemon
