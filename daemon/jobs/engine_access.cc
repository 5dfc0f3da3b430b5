#include "daemon/jobs/engine_access.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "daemon/errors.h"
#include "daemon/memory_text.h"

namespace mk::daemon {
namespace {

// How soon a job that waits sees that it was cancelled.
constexpr auto kLook = std::chrono::milliseconds(20);

protocol::Error Cancelled() {
  return {protocol::ErrorCode::kCancelled, "cancelled", {}, {}};
}

}  // namespace

struct EngineAccess::Load {
  ModelRef ref;
  Precision precision = Precision::kExact;
  bool retried = false;  // the loop's
  std::mutex mutex;      // of what follows
  std::condition_variable changed;
  std::optional<protocol::Progress> progress;  // that the job has not told yet
  std::optional<protocol::Result<std::shared_ptr<const LoadedModel>>> result;

  void Finish(protocol::Result<std::shared_ptr<const LoadedModel>> what) {
    {
      std::lock_guard lock(mutex);
      result = std::move(what);
    }
    changed.notify_one();
  }
};

struct EngineAccess::Alone {
  ExclusiveWork work;
  uint64_t state_bytes = 0;
  std::shared_ptr<RequestControl> control = std::make_shared<RequestControl>();
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool running = false;
  bool abandoned = false;  // the job has gone: the work must not begin
  std::optional<protocol::Result<protocol::Body>> result;

  void Finish(protocol::Result<protocol::Body> what) {
    {
      std::lock_guard lock(mutex);
      running = false;
      if (!result) result = std::move(what);
    }
    changed.notify_one();
  }
};

EngineAccess::EngineAccess(Core& core, ModelService& models) : core_(core) {
  models.on_other_progress = [this](uint64_t key, const protocol::Progress& progress) {
    const auto found = loads_.find(key);
    if (found == loads_.end()) return;
    Load& load = *found->second;
    std::lock_guard lock(load.mutex);
    load.progress = progress;
  };
  models.on_other_loaded = [this](uint64_t key, ModelRegistry::Entry* entry, const Error* error) {
    OnLoaded(key, entry, error);
  };
}

void EngineAccess::BeginLoad(uint64_t key, const ModelRef& ref, Precision precision,
                             const std::shared_ptr<Load>& load) {
  auto entry = core_.registry.Acquire(ref, precision, key);
  if (!entry) return load->Finish(protocol::Fail(ToModelError(entry.error())));
  if ((*entry)->users.count(key) > 0) return load->Finish((*entry)->loaded);
  loads_[key] = load;
}

void EngineAccess::OnLoaded(uint64_t key, ModelRegistry::Entry* entry, const Error* error) {
  const auto found = loads_.find(key);
  if (found == loads_.end()) return;
  const std::shared_ptr<Load> load = std::move(found->second);
  loads_.erase(found);
  if (entry != nullptr) return load->Finish(entry->loaded);
  if (error->code == ErrorCode::kOutOfMemory && !load->retried) {
    load->retried = true;
    core_.registry.UnloadIdle();
    return BeginLoad(key, load->ref, load->precision, load);
  }
  load->Finish(protocol::Fail(ToModelError(*error)));
}

protocol::Result<ModelLease> EngineAccess::Acquire(const ModelRef& ref, Precision precision,
                                                   JobContext& context) {
  auto load = std::make_shared<Load>();
  load->ref = ref;
  load->precision = precision;
  const uint64_t key = next_key_.fetch_add(1);
  std::shared_ptr<void> held(nullptr, [this, key](void*) {
    core_.events.Push(IoCall{[this, key] {
      loads_.erase(key);
      core_.registry.Release(key);
    }});
  });
  core_.events.Push(
      IoCall{[this, key, load] { BeginLoad(key, load->ref, load->precision, load); }});
  std::unique_lock lock(load->mutex);
  while (!load->result && !context.cancelled()) {
    load->changed.wait_for(lock, kLook);
    auto progress = std::exchange(load->progress, std::nullopt);
    if (!progress) continue;
    lock.unlock();
    context.Report(std::move(*progress));
    lock.lock();
  }
  if (!load->result) return protocol::Fail(Cancelled());
  if (!*load->result) return protocol::Fail(std::move(load->result->error()));
  return ModelLease(std::move(**load->result), std::move(held));
}

void EngineAccess::BeginAlone(uint64_t key, const std::shared_ptr<Alone>& alone) {
  if (core_.ledger.available() < alone->state_bytes) core_.registry.UnloadIdle();
  Submission submission;
  submission.key = key;
  submission.control = alone->control;
  submission.state_bytes = alone->state_bytes;
  submission.work = [alone](Executor& executor, const std::function<bool()>& go_on) {
    {
      std::lock_guard lock(alone->mutex);
      if (alone->abandoned) return Result<protocol::Body>(Fail(ErrorCode::kCancelled, "cancelled"));
      alone->running = true;
    }
    Result<protocol::Body> done = alone->work(executor, go_on);
    alone->Finish(done ? protocol::Result<protocol::Body>(*done)
                       : protocol::Fail(ToProtocol(done.error())));
    return done;
  };
  alones_[key] = alone;
  if (core_.scheduler.Submit(std::move(submission))) return;
  alones_.erase(key);
  alone->Finish(protocol::Fail(protocol::ErrorCode::kBusy, "too many requests wait", "try again"));
}

bool EngineAccess::OnSchedulerEvent(SchedulerEvent& event) {
  if (event.key < kFirstKey) return false;
  const auto found = alones_.find(event.key);
  if (const auto* needs = std::get_if<RequestNeedsRoom>(&event.what)) {
    if (found != alones_.end()) MakeRoom(*found->second, *needs);
    return true;
  }
  auto* finished = std::get_if<RequestFinished>(&event.what);
  if (found == alones_.end() || finished == nullptr) return true;
  // One that never ran: it was cancelled, say.
  found->second->Finish(finished->result
                            ? protocol::Result<protocol::Body>(std::move(*finished->result))
                            : protocol::Fail(ToProtocol(finished->result.error())));
  alones_.erase(found);
  return true;
}

// Where nothing runs that could end and give back some, there will be no room.
void EngineAccess::MakeRoom(Alone& alone, const RequestNeedsRoom& needs) {
  if (core_.registry.MakeRoom(needs.bytes)) {
    alone.control->needs_room.store(false);
  } else if (needs.others_run) {
    return;
  } else {
    {
      std::lock_guard lock(alone.mutex);
      if (alone.running) return;  // there was room after all
      alone.abandoned = true;
    }
    alone.Finish(
        protocol::Fail(OutOfMemory("the work", needs.bytes, core_.ledger, core_.registry)));
    alone.control->cancelled.store(true);
  }
  core_.scheduler.Wake();
}

protocol::Result<protocol::Body> EngineAccess::RunAlone(ExclusiveWork work, uint64_t state_bytes,
                                                        JobContext& context) {
  auto alone = std::make_shared<Alone>();
  alone->work = std::move(work);
  alone->state_bytes = state_bytes;
  const uint64_t key = next_key_.fetch_add(1);
  core_.events.Push(IoCall{[this, key, alone] { BeginAlone(key, alone); }});
  std::unique_lock lock(alone->mutex);
  while (!alone->result) {
    if (context.cancelled()) {
      alone->control->cancelled.store(true);
      core_.scheduler.Wake();
      // Work that runs uses what belongs to the job: it is waited for.
      if (!alone->running) {
        alone->abandoned = true;
        return protocol::Fail(Cancelled());
      }
    }
    alone->changed.wait_for(lock, kLook);
  }
  return std::move(*alone->result);
}

}  // namespace mk::daemon
