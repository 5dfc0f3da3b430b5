#include "daemon/run_service.h"

#include <algorithm>
#include <utility>

#include "daemon/errors.h"
#include "daemon/memory_text.h"
#include "daemon/run_packs.h"
#include "daemon/run_task.h"
#include "daemon/score_task.h"

namespace mk::daemon {
namespace {

bool IsOpenRun(const ClientRequest& request) {
  return RunsInSteps(request.op) && !request.final;
}

bool IsBackground(const ClientRequest& request) {
  return request.control->background.load();
}

double Milliseconds(int64_t from_us, int64_t to_us) {
  return to_us > from_us && from_us > 0 ? static_cast<double>(to_us - from_us) / 1000.0 : 0;
}

int64_t Microseconds(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

// From its arrival to its first step, without the time in which its model was loaded.
double QueueMilliseconds(const ClientRequest& request) {
  const int64_t started = request.control->started_us.load();
  return std::max(0.0, Milliseconds(Microseconds(request.arrived), started) - request.load_ms);
}

protocol::Error TooManyWait() {
  return {protocol::ErrorCode::kBusy, "too many requests wait", "try again", {}};
}

// How the request is to be run, beside what it is.
template <typename Args>
void TakeTerms(const Args& args, ClientRequest& request) {
  request.control->window.store(args.window);
  request.control->background.store(args.priority == protocol::kBackground);
  if (args.timeout_ms > 0) {
    request.deadline = request.arrived + std::chrono::milliseconds(args.timeout_ms);
  }
}

}  // namespace

// A run with memory packs, on its way to the scheduler.
struct RunService::PackRun {
  uint64_t key = 0;
  std::shared_ptr<RequestControl> control;
  std::shared_ptr<const LoadedModel> loaded;
  Precision precision = Precision::kExact;
  protocol::RunArgs args;
  RunStart start;
  std::shared_ptr<RunPacks> packs;
  bool asked_for_room = false;
  Reservation held;  // for the state in the pack
};

std::optional<protocol::Error> RunService::Refuse(const ClientRequest& request) const {
  uint64_t running = 0;
  uint64_t waiting = 0;
  for (const auto& [key, other] : core_.clients.requests()) {
    if (!IsOpenRun(*other) || key == request.key) continue;
    ++(other->started ? running : waiting);
  }
  const uint64_t limit =
      core_.limits.max_active + static_cast<uint64_t>(std::max(core_.config.max_queue, 0));
  // No client may fill more than half of the places, so that there is always room for another.
  const uint64_t own = core_.clients.CountOpen(request.client, protocol::Op::kRun) +
                       core_.clients.CountOpen(request.client, protocol::Op::kScore) - 1;
  if (running + waiting < limit && own < std::max<uint64_t>(1, limit / 2)) return std::nullopt;
  return protocol::Error{
      protocol::ErrorCode::kBusy,
      std::to_string(running) + " requests are running and " + std::to_string(waiting) +
          " are waiting",
      "try again later",
      {{"queue", static_cast<int64_t>(waiting)}, {"running", static_cast<int64_t>(running)}}};
}

// Whether requests that come later wait for it.
bool RunService::HoldsUpOthers(const ClientRequest& request) const {
  if (request.op == protocol::Op::kBench) return !request.final;
  return IsOpenRun(request) && !request.started && sessions_.WaitingBefore(request) == 0;
}

uint64_t RunService::WaitingBefore(const ClientRequest& request) const {
  if (const uint64_t runs = sessions_.WaitingBefore(request); runs > 0) return runs;
  uint64_t before = core_.job_holds_up ? 1 : 0;
  for (const auto& [key, other] : core_.clients.requests()) {
    const bool background = IsBackground(*other);
    const bool first = background == IsBackground(request) ? key < request.key : !background;
    if (first && HoldsUpOthers(*other)) ++before;
  }
  return before;
}

void RunService::Handle(ClientRequest& request) {
  if (auto error = Refuse(request)) return core_.clients.Finish(request, std::move(*error));
  const auto& args = std::get<protocol::RunArgs>(request.args);
  if (auto packs = PacksOf(args); !packs) {
    return core_.clients.Finish(request, std::move(packs.error()));
  }
  TakeTerms(args, request);
  const bool in_session = !args.session.empty();
  request.told_position = in_session ? sessions_.RunsIn(args.session) : WaitingBefore(request);
  core_.clients.Send(request, protocol::Accepted{request.told_position});
  if (in_session) return sessions_.Begin(request);
  AcquireModel(request);
}

void RunService::HandleScore(ClientRequest& request) {
  if (auto error = Refuse(request)) return core_.clients.Finish(request, std::move(*error));
  const auto& args = std::get<protocol::ScoreArgs>(request.args);
  TakeTerms(args, request);
  request.told_position = WaitingBefore(request);
  core_.clients.Send(request, protocol::Accepted{request.told_position});
  request.precision = models_.PrecisionOf(args.precision);
  models_.Acquire(request, args.model);
}

// Its texts are encoded.
void RunService::OnScoreModelReady(ClientRequest& request, ModelRegistry::Entry& entry) {
  request.phase = RequestPhase::kPreparing;
  auto args =
      std::make_shared<protocol::ScoreArgs>(std::move(std::get<protocol::ScoreArgs>(request.args)));
  auto task = [key = request.key, control = request.control, loaded = entry.loaded, args,
               precision = request.precision, &events = core_.events] {
    if (control->cancelled.load()) return;  // answered already
    events.Push(RunPrepared{key, PrepareScore(loaded, precision, std::move(*args))});
  };
  if (core_.aux.Post(std::move(task))) return;
  core_.registry.Release(request.key);
  core_.clients.Finish(request, TooManyWait());
}

void RunService::AcquireModel(ClientRequest& request) {
  const auto& args = std::get<protocol::RunArgs>(request.args);
  request.precision = models_.PrecisionOf(args.precision);
  models_.Acquire(request, args.model);
}

void RunService::OnModelReady(ClientRequest& request, ModelRegistry::Entry& entry) {
  if (request.op == protocol::Op::kScore) return OnScoreModelReady(request, entry);
  if (request.session) return sessions_.Prepare(request, entry.loaded);
  request.phase = RequestPhase::kPreparing;
  // The arguments are not needed here again; a prompt may be large.
  auto args =
      std::make_shared<protocol::RunArgs>(std::move(std::get<protocol::RunArgs>(request.args)));
  auto packs = PacksOf(*args);
  if (packs && packs->any()) {
    auto run = std::make_shared<PackRun>();
    *run = {request.key,
            request.control,
            entry.loaded,
            request.precision,
            std::move(*args),
            std::move(request.start),
            std::make_shared<RunPacks>(std::move(*packs)),
            false,
            {}};
    if (!run->packs->save.empty()) request.keep_state = SaveWhatIsLeft(run->packs, entry.loaded);
    run->start.leave_state = request.keep_state != nullptr;
    return PostPackRun(run);
  }
  request.start.leave_state = request.keep_state != nullptr;
  auto task = [key = request.key, control = request.control, loaded = entry.loaded, args,
               start = std::move(request.start), precision = request.precision,
               &events = core_.events, &disk = *core_.prefixes.disk()] {
    if (control->cancelled.load()) return;  // answered already
    RunPrepared prepared{key, PrepareRun(loaded, precision, std::move(*args), start)};
    if (!prepared.run || !prepared.run->fetch) return (void)events.Push(std::move(prepared));
    // The state of its beginning is read from disk first: on a thread of its own, so that neither
    // the scheduler's steps nor others' prompts wait for that.
    auto shared = std::make_shared<RunPrepared>(std::move(prepared));
    const auto go_on = [shared, control, &events] {
      if (!control->cancelled.load()) events.Push(std::move(*shared));
    };
    const bool posted = disk.PostRead([shared, control, go_on] {
      if (!control->cancelled.load()) shared->run->fetch();
      go_on();
    });
    if (!posted) go_on();
  };
  if (!core_.aux.Post(std::move(task))) {
    core_.registry.Release(request.key);
    core_.clients.Finish(request, TooManyWait());
  }
}

void RunService::PostPackRun(const std::shared_ptr<PackRun>& run) {
  if (core_.states.Post([this, run] { PreparePackRun(run); })) return;
  OnPrepared({run->key, protocol::Fail(TooManyWait())});
}

// On the states thread.
void RunService::PreparePackRun(const std::shared_ptr<PackRun>& run) {
  if (run->control->cancelled.load()) return;  // answered already
  const auto refuse = [&](protocol::Error error) {
    core_.events.Push(RunPrepared{run->key, protocol::Fail(std::move(error))});
  };
  RunPacks& packs = *run->packs;
  const Model& model = *run->loaded->model;
  if (!packs.save.empty()) {
    if (auto good = CheckSave(packs, model); !good) return refuse(std::move(good.error()));
  }
  if (!packs.memory.empty()) {
    auto bytes = MemoryOf(packs.memory, model);
    if (!bytes) return refuse(std::move(bytes.error()));
    auto memory = core_.ledger.Reserve(MemoryUse::kSequences, *bytes);
    if (!memory) {
      core_.events.Push(IoCall{[this, run, bytes = *bytes] { MakeRoomFor(run, bytes); }});
      return;
    }
    // What the run may grow to holds this state too, once: they share what neither has changed.
    run->held = std::move(*memory);
    auto state = LoadState(packs, run->loaded, run->precision, run->args, {});
    if (!state) return refuse(std::move(state.error()));
    run->start.bases = {std::move(*state)};
    run->start.append = true;
  }
  auto prepared = PrepareRun(run->loaded, run->precision, std::move(run->args), run->start);
  run->start = {};
  if (prepared) prepared->held = std::move(run->held);
  core_.events.Push(RunPrepared{run->key, std::move(prepared)});
}

void RunService::MakeRoomFor(const std::shared_ptr<PackRun>& run, uint64_t bytes) {
  const ClientRequest* request = core_.clients.Find(run->key);
  if (request == nullptr || run->control->cancelled.load()) return;
  if (!std::exchange(run->asked_for_room, true) && core_.registry.MakeRoom(bytes)) {
    return PostPackRun(run);
  }
  const auto& requests = core_.clients.requests();
  const bool others_run = std::any_of(requests.begin(), requests.end(), [&](const auto& entry) {
    return entry.first != run->key && IsOpenRun(*entry.second) &&
           entry.second->phase == RequestPhase::kScheduled;
  });
  const uint64_t kept = core_.registry.KeptBeside(run->key);
  const uint64_t budget = core_.ledger.budget();
  if (others_run && kept <= budget && bytes <= budget - kept) return without_room_.push_back(run);
  OnPrepared({run->key, protocol::Fail(NoRoomFor(*request, bytes))});
}

// Another run has begun, and shares its state with nobody any more, or has ended.
void RunService::TryRoomAgain() {
  for (const auto& run : std::exchange(without_room_, {})) {
    run->asked_for_room = false;
    PostPackRun(run);
  }
}

void RunService::OnPrepared(RunPrepared prepared) {
  ClientRequest* request = core_.clients.Find(prepared.key);
  if (request == nullptr || request->control->cancelled.load()) return;
  if (!prepared.run) {
    core_.registry.Release(request->key);
    return core_.clients.Finish(*request, prepared.run.error());
  }
  request->phase = RequestPhase::kScheduled;
  request->prepared = Clock::now();
  request->control->prompt_total.store(prepared.run->prompt_tokens);
  const uint64_t bytes = prepared.run->state_bytes;
  const uint64_t kept = core_.registry.KeptBeside(request->key);
  if (kept > core_.ledger.budget() || bytes > core_.ledger.budget() - kept) {
    // It could never begin, whoever else ends.
    protocol::Error error = NoRoomFor(*request, bytes);
    core_.registry.Release(request->key);
    return core_.clients.Finish(*request, std::move(error));
  }
  // Where that is not enough, it waits for those who run.
  core_.registry.MakeRoom(bytes - std::min(bytes, prepared.run->held.bytes()));
  Submission submission;
  submission.key = request->key;
  submission.client = request->client;
  submission.task = std::move(prepared.run->task);
  submission.control = request->control;
  submission.state_bytes = bytes;
  submission.held = std::move(prepared.run->held);
  submission.deadline = request->deadline;
  if (!core_.scheduler.Submit(std::move(submission))) {
    core_.registry.Release(request->key);
    core_.clients.Finish(*request, TooManyWait());
  }
}

void RunService::OnSchedulerEvent(SchedulerEvent event) {
  ClientRequest* request = core_.clients.Find(event.key);
  if (request == nullptr) return;
  if (const auto* needs = std::get_if<RequestNeedsRoom>(&event.what)) {
    return OnNeedsRoom(*request, *needs);
  }
  if (std::holds_alternative<RequestStarted>(event.what)) {
    request->started = true;
    TryRoomAgain();
    CountStart(*request);
    TellPositions();
  } else if (auto* message = std::get_if<protocol::Body>(&event.what)) {
    // The daemon has ended it, perhaps before it knew that it had begun: who has seen nothing of
    // an answer may ask another daemon for it.
    if (request->verdict) return;
    const auto* token = std::get_if<protocol::TokenChunk>(message);
    if (token != nullptr && token->index == 0) {
      const int64_t first = request->control->first_token_us.load();
      core_.metrics.Observe(Distribution::kFirstToken,
                            std::chrono::microseconds(first - Microseconds(request->arrived)));
    }
    const size_t cost = MessageCost(*message);
    core_.clients.Send(*request, std::move(*message), cost);
  } else {
    OnFinished(*request, std::move(std::get<RequestFinished>(event.what)));
  }
}

protocol::Error RunService::NoRoomFor(const ClientRequest& request, uint64_t bytes) const {
  const std::string op(protocol::InfoOf(request.op).name);
  protocol::Error error = OutOfMemory("the " + op, bytes, core_.ledger, core_.registry);
  if (request.op == protocol::Op::kRun) error.hint += ", or ask for fewer tokens";
  return error;
}

// Room may be made of models that became idle since the request was submitted. Where nothing runs
// any more that could end and make room, there will be none.
void RunService::OnNeedsRoom(ClientRequest& request, const RequestNeedsRoom& needs) {
  if (core_.registry.MakeRoom(needs.bytes)) {
    request.control->needs_room.store(false);
  } else if (needs.others_run || core_.keeping > 0) {
    return;
  } else {
    if (!request.verdict) request.verdict = NoRoomFor(request, needs.bytes);
    request.control->cancelled.store(true);
  }
  core_.scheduler.Wake();
}

void RunService::CountStart(const ClientRequest& request) {
  if (!RunsInSteps(request.op)) return;
  core_.metrics.Add(Counter::kPromptTokens, request.control->prompt_total.load());
  core_.metrics.Observe(Distribution::kQueueWait,
                        std::chrono::duration<double, std::milli>(QueueMilliseconds(request)));
}

// Those who wait learn how many are before them, when that changed.
void RunService::TellPositions() {
  uint64_t before = core_.job_holds_up ? 1 : 0;
  for (const bool background : {false, true}) {
    for (const auto& [key, request] : core_.clients.requests()) {
      if (IsBackground(*request) != background || !HoldsUpOthers(*request)) continue;
      const bool run = IsOpenRun(*request);
      if (run && request->told_position != before && !request->outbox.has_unsent()) {
        request->told_position = before;
        core_.clients.Send(*request, protocol::Progress{"queue", before, 0, "requests"});
      }
      ++before;
    }
  }
}

void RunService::FillTiming(const ClientRequest& request, protocol::Timing& timing) const {
  const RequestControl& control = *request.control;
  const int64_t arrived = Microseconds(request.arrived);
  const int64_t started = control.started_us.load();
  const int64_t first = control.first_token_us.load();
  const int64_t last = control.last_token_us.load();
  timing.load_ms = request.load_ms;
  timing.queue_ms = QueueMilliseconds(request);
  timing.prefill_ms = Milliseconds(started, first > 0 ? first : NowMicroseconds());
  timing.ttft_ms = Milliseconds(arrived, first);
  timing.decode_ms = Milliseconds(first, last);
  timing.total_ms = Milliseconds(arrived, NowMicroseconds());
  const uint64_t generated = control.generated.load();
  // The first token comes with the prompt; the rate is that of the others.
  if (generated > 1 && timing.decode_ms > 0) {
    timing.tok_per_s = static_cast<double>(generated - 1) * 1000.0 / timing.decode_ms;
  }
}

protocol::Body RunService::LastMessage(const ClientRequest& request, RequestFinished& finished) {
  if (finished.timed_out) core_.metrics.Add(Counter::kStoppedDeadline);
  if (request.verdict && request.control->cancelled.load()) return *request.verdict;
  if (!finished.result) {
    protocol::Error error = ToModelError(finished.result.error());
    if (finished.timed_out) error.code = protocol::ErrorCode::kTimeout;
    return error;
  }
  if (auto* done = std::get_if<protocol::RunDone>(&*finished.result)) {
    FillTiming(request, done->timing);
  } else if (auto* scored = std::get_if<protocol::ScoreDone>(&*finished.result)) {
    FillTiming(request, scored->timing);
  }
  return std::move(*finished.result);
}

void RunService::Close(ClientRequest& request, protocol::Body last) {
  core_.registry.Release(request.key);
  core_.clients.Finish(request, std::move(last));
  TryRoomAgain();
}

// A request whose state is being kept stays with us: what is said at its end is true, so that
// neither a cancel nor a deadline ends it any more.
void RunService::OnFinished(ClientRequest& request, RequestFinished finished) {
  protocol::Body last = LastMessage(request, finished);
  if (!request.keep_state || !finished.left) {
    auto* done = std::get_if<protocol::RunDone>(&last);
    if (done != nullptr && request.keep_state) {
      done->warnings.emplace_back("no state was kept: the prompt was not read to its end");
    }
    return Close(request, std::move(last));
  }
  auto task = [this, key = request.key, keep = std::move(request.keep_state),
               left = std::move(finished.left), last = std::move(last)]() mutable {
    const bool failed = std::holds_alternative<protocol::Error>(last);
    if (auto kept = keep(left, last); !kept && !failed) last = std::move(kept.error());
    keep = nullptr;
    left.reset();
    core_.events.Push(IoCall{[this, key, last = std::move(last)] {
      --core_.keeping;
      core_.scheduler.RoomWasMade();
      if (ClientRequest* ended = core_.clients.Find(key)) Close(*ended, last);
    }});
  };
  if (core_.states.Post(std::move(task))) {
    ++core_.keeping;
    return;
  }
  core_.scheduler.RoomWasMade();
  Close(request, protocol::Error{protocol::ErrorCode::kBusy,
                                 "the run is over, but too many states wait to be kept",
                                 "run it again",
                                 {}});
}

}  // namespace mk::daemon
