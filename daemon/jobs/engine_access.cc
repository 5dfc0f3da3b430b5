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
  protocol::StreamWish stream;
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

// What a job has done on the scheduler's thread.
struct EngineAccess::Piece {
  // One of the two.
  ExclusiveWork work;
  std::unique_ptr<StepTask> task;
  uint64_t state_bytes = 0;
  std::shared_ptr<RequestControl> control = std::make_shared<RequestControl>();
  std::mutex mutex;  // of what follows
  std::condition_variable changed;
  bool running = false;
  bool abandoned = false;  // the job has gone: the work must not begin
  std::optional<protocol::Result<protocol::Body>> result;
  SharedState left;

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
  auto entry = core_.registry.Acquire(ref, precision, key, std::nullopt, load->stream);
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
                                                   JobContext& context,
                                                   const protocol::StreamWish& stream) {
  auto load = std::make_shared<Load>();
  load->ref = ref;
  load->precision = precision;
  load->stream = stream;
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

ExclusiveWork EngineAccess::WorkOf(const std::shared_ptr<Piece>& piece) {
  return [piece](Executor& executor, const std::function<bool()>& go_on) {
    {
      std::lock_guard lock(piece->mutex);
      if (piece->abandoned) return Result<protocol::Body>(Fail(ErrorCode::kCancelled, "cancelled"));
      piece->running = true;
    }
    Result<protocol::Body> done = piece->work(executor, go_on);
    piece->Finish(done ? protocol::Result<protocol::Body>(*done)
                       : protocol::Fail(ToProtocol(done.error())));
    return done;
  };
}

void EngineAccess::Begin(uint64_t key, const std::shared_ptr<Piece>& piece) {
  if (core_.ledger.available() < piece->state_bytes) core_.registry.UnloadIdle();
  Submission submission;
  submission.key = key;
  submission.control = piece->control;
  submission.state_bytes = piece->state_bytes;
  submission.task = std::move(piece->task);
  if (piece->work) submission.work = WorkOf(piece);
  pieces_[key] = piece;
  if (core_.scheduler.Submit(std::move(submission))) return;
  pieces_.erase(key);
  piece->Finish(protocol::Fail(protocol::ErrorCode::kBusy, "too many requests wait", "try again"));
}

bool EngineAccess::OnSchedulerEvent(SchedulerEvent& event) {
  if (event.key < kFirstKey) return false;
  const auto found = pieces_.find(event.key);
  if (const auto* needs = std::get_if<RequestNeedsRoom>(&event.what)) {
    if (found != pieces_.end()) MakeRoom(*found->second, *needs);
    return true;
  }
  auto* finished = std::get_if<RequestFinished>(&event.what);
  if (found == pieces_.end() || finished == nullptr) return true;
  // Of exclusive work, one that never ran: it was cancelled, say.
  Piece& piece = *found->second;
  {
    std::lock_guard lock(piece.mutex);
    piece.left = std::move(finished->left);
  }
  piece.Finish(finished->result ? protocol::Result<protocol::Body>(std::move(*finished->result))
                                : protocol::Fail(ToProtocol(finished->result.error())));
  pieces_.erase(found);
  return true;
}

// Where nothing runs that could end and give back some, there will be no room.
void EngineAccess::MakeRoom(Piece& piece, const RequestNeedsRoom& needs) {
  if (core_.registry.MakeRoom(needs.bytes)) {
    piece.control->needs_room.store(false);
  } else if (needs.others_run || core_.keeping > 0) {
    return;
  } else {
    {
      std::lock_guard lock(piece.mutex);
      if (piece.running) return;  // there was room after all
      piece.abandoned = true;
    }
    piece.Finish(
        protocol::Fail(OutOfMemory("the work", needs.bytes, core_.ledger, core_.registry)));
    piece.control->cancelled.store(true);
  }
  core_.scheduler.Wake();
}

protocol::Result<protocol::Body> EngineAccess::RunAlone(ExclusiveWork work, uint64_t state_bytes,
                                                        JobContext& context) {
  auto piece = std::make_shared<Piece>();
  piece->work = std::move(work);
  piece->state_bytes = state_bytes;
  Post(piece);
  return Await(piece, context, nullptr);
}

std::shared_ptr<EngineAccess::Piece> EngineAccess::PieceBeside(PreparedRun run) {
  auto piece = std::make_shared<Piece>();
  piece->task = std::move(run.task);
  piece->state_bytes = run.state_bytes;
  piece->control->background.store(true);
  // Nobody acknowledges what it tells.
  piece->control->window.store(uint64_t{1} << 62);
  return piece;
}

protocol::Result<SharedState> EngineAccess::RunBeside(PreparedRun run, JobContext& context,
                                                      const Look& look) {
  const std::shared_ptr<Piece> piece = PieceBeside(std::move(run));
  Post(piece);
  auto done = Await(piece, context, look);
  if (!done) return protocol::Fail(std::move(done.error()));
  return std::move(piece->left);
}

protocol::Result<std::vector<protocol::Body>> EngineAccess::RunTogether(
    std::vector<PreparedRun> runs, JobContext& context) {
  std::vector<std::shared_ptr<Piece>> pieces;
  for (PreparedRun& run : runs) {
    pieces.push_back(PieceBeside(std::move(run)));
    Post(pieces.back());
  }
  std::vector<protocol::Body> bodies;
  std::optional<protocol::Error> error;
  for (const std::shared_ptr<Piece>& piece : pieces) {
    if (error) {
      piece->control->cancelled.store(true);
      continue;
    }
    auto done = Await(piece, context, nullptr);
    if (done) {
      bodies.push_back(std::move(*done));
    } else {
      error = std::move(done.error());
    }
  }
  if (!error) return bodies;
  core_.scheduler.Wake();
  return protocol::Fail(std::move(*error));
}

void EngineAccess::Post(const std::shared_ptr<Piece>& piece) {
  const uint64_t key = next_key_.fetch_add(1);
  core_.events.Push(IoCall{[this, key, piece] { Begin(key, piece); }});
}

protocol::Result<protocol::Body> EngineAccess::Await(const std::shared_ptr<Piece>& piece,
                                                     JobContext& context, const Look& look) {
  std::unique_lock lock(piece->mutex);
  while (!piece->result) {
    if (context.cancelled()) {
      piece->control->cancelled.store(true);
      core_.scheduler.Wake();
      // Work that runs uses what belongs to the job: it is waited for.
      if (!piece->running) {
        piece->abandoned = true;
        return protocol::Fail(Cancelled());
      }
    }
    piece->changed.wait_for(lock, kLook);
    if (look) look(*piece->control);
  }
  return std::move(*piece->result);
}

protocol::Result<Reservation> EngineAccess::Reserve(uint64_t bytes, JobContext& context) {
  auto memory = core_.ledger.Reserve(MemoryUse::kSequences, bytes);
  if (memory) return std::move(*memory);
  struct Asked {
    std::mutex mutex;  // of what follows
    std::condition_variable changed;
    std::optional<protocol::Result<Reservation>> answer;
  };
  auto asked = std::make_shared<Asked>();
  core_.events.Push(IoCall{[this, asked, bytes] {
    core_.registry.MakeRoom(bytes);
    auto room = core_.ledger.Reserve(MemoryUse::kSequences, bytes);
    std::lock_guard lock(asked->mutex);
    if (room) {
      asked->answer.emplace(std::move(*room));
    } else {
      asked->answer.emplace(
          protocol::Fail(OutOfMemory("the pack", bytes, core_.ledger, core_.registry)));
    }
    asked->changed.notify_one();
  }});
  std::unique_lock lock(asked->mutex);
  while (!asked->answer) {
    if (context.cancelled()) return protocol::Fail(Cancelled());
    asked->changed.wait_for(lock, kLook);
  }
  return std::move(*asked->answer);
}

void EngineAccess::OnStatesThread(const std::function<void()>& work) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  const bool posted = core_.states.Post([&] {
    work();
    std::lock_guard lock(mutex);
    done = true;
    changed.notify_one();
  });
  if (!posted) return;
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
}

}  // namespace mk::daemon
