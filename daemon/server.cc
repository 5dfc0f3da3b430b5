#include "daemon/server.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <zmq.h>
#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "daemon/journal.h"
#include "daemon/metrics_report.h"
#include "daemon/server_parts.h"

namespace mk::daemon {
namespace {

// While the transport is full: how soon to try again.
constexpr int kRetryMilliseconds = 10;
// Per round, so that no source starves the others. For messages a time, because some take a while
// to decode: a prompt of a million ids takes milliseconds.
constexpr auto kReceivingPerRound = std::chrono::milliseconds(5);
constexpr size_t kEventsPerRound = 1024;

}  // namespace

protocol::Error ShuttingDown() {
  return {protocol::ErrorCode::kShuttingDown,
          "the daemon is shutting down",
          "start the request again; mk starts a new daemon",
          {}};
}

Server::Server(std::unique_ptr<Parts> parts)
    : parts_(std::move(parts)),
      core_{parts_->setup.config,
            DefaultModelFolders(),
            parts_->threads,
            parts_->limits,
            false,
            false,
            parts_->metrics,
            parts_->ledger,
            *parts_->clients,
            *parts_->registry,
            std::make_shared<ModelCatalog>(),
            *parts_->scheduler,
            parts_->aux,
            parts_->states,
            parts_->events,
            parts_->prefixes},
      identity_{parts_->setup.booted.paths.socket,
                parts_->setup.log_file,
                parts_->setup.log_file.empty() ? JournalUnit() : std::string(),
                parts_->setup.state_directory,
                Clock::now(),
                std::chrono::system_clock::now()},
      models_(core_),
      sessions_(core_, parts_->setup.session_folder),
      runs_(core_, models_, sessions_),
      texts_(core_),
      jobs_(core_, models_, parts_->setup.job_folder),
      prefixes_(core_),
      looks_(core_) {
  models_.on_ready = [this](ClientRequest& request, ModelRegistry::Entry& entry) {
    runs_.OnModelReady(request, entry);
  };
  idle_since_ = Clock::now();
}

int Server::Run() {
  while (!stop_deadline_ || !MayLeave()) Poll();
  Leave();
  return exit_code_;
}

void Server::Poll() {
  std::array<zmq_pollitem_t, 4> items = {{
      {parts_->transport->router(), 0, ZMQ_POLLIN, 0},
      {parts_->transport->monitor(), 0, ZMQ_POLLIN, 0},
      {nullptr, parts_->events.event().fd(), ZMQ_POLLIN, 0},
      {nullptr, parts_->setup.booted.signals.get(), ZMQ_POLLIN, 0},
  }};
  // EINTR and the like: the next round sees what there is.
  zmq_poll(items.data(), static_cast<int>(items.size()), PollMilliseconds(Clock::now()));

  ReceiveSome();
  TakeEvents();
  parts_->transport->DrainMonitor();
  TakeSignals();
  const auto now = Clock::now();
  for (const int gone : parts_->transport->TakeClosed()) {
    parts_->clients->ConnectionClosed(gone, now);
  }
  unsent_ = parts_->clients->Flush();
  CancelLate(now);
  WatchdogReport(now);
  if (now >= next_tick_) Tick(now);
  CancelLost();
  if (stop_deadline_ && now >= *stop_deadline_) HurryStop(now);
}

int Server::PollMilliseconds(Clock::time_point now) const {
  auto until = next_tick_;
  if (const auto& report = parts_->watchdog->next()) until = std::min(until, *report);
  if (next_unload_) until = std::min(until, *next_unload_);
  if (stop_deadline_ && !stop_hurried_) until = std::min(until, *stop_deadline_);
  for (const auto& [key, request] : core_.clients.requests()) {
    if (request->deadline && request->phase != RequestPhase::kScheduled) {
      until = std::min(until, *request->deadline);
    }
  }
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now).count() + 1;
  const auto wait = std::clamp<int64_t>(left, 0, 1000);
  return static_cast<int>(unsent_ ? std::min<int64_t>(wait, kRetryMilliseconds) : wait);
}

void Server::ReceiveSome() {
  const auto end = Clock::now() + kReceivingPerRound;
  Incoming incoming;
  while (parts_->transport->Receive(incoming)) {
    parts_->metrics.Add(Counter::kMessagesReceived);
    parts_->metrics.Add(Counter::kReceivedBytes, incoming.payload.size());
    Dispatch(incoming);
    if (Clock::now() >= end) return;
  }
}

void Server::Dispatch(Incoming& incoming) {
  parts_->clients->Touch(incoming.peer, Clock::now(), incoming.connection);
  const std::string_view bytes(static_cast<const char*>(incoming.payload.data()),
                               incoming.payload.size());
  if (!incoming.single_frame) {
    parts_->metrics.Add(Counter::kMessagesRejected);
    return parts_->clients->Reply(
        incoming.peer, 0,
        protocol::Error{protocol::ErrorCode::kBadRequest,
                        "a message has exactly one frame",
                        "use a DEALER socket and send one frame per message",
                        {}});
  }
  auto request = protocol::DecodeRequest(bytes);
  if (!request) {
    parts_->metrics.Add(Counter::kMessagesRejected);
    return parts_->clients->Reply(incoming.peer, request.error().id, request.error().error);
  }
  if (protocol::InfoOf(protocol::OpOf(*request)).control) {
    Control(incoming.peer, std::move(*request));
  } else {
    Start(incoming.peer, std::move(*request));
  }
}

// Ops that are answered now, whatever else is going on.
void Server::Control(const std::string& peer, protocol::Request request) {
  ClientTable& clients = *parts_->clients;
  switch (protocol::OpOf(request)) {
    case protocol::Op::kHello:
      return Hello(peer, request.id, std::get<protocol::HelloArgs>(request.args));
    case protocol::Op::kPing: {
      const auto up = Clock::now() - identity_.started;
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(up).count();
      return clients.Answer(
          peer, request.id, protocol::Op::kPing,
          protocol::PingDone{static_cast<uint64_t>(getpid()), static_cast<uint64_t>(ms)});
    }
    case protocol::Op::kStatus:
      return StatusOp(peer, request.id);
    case protocol::Op::kMetrics:
      return MetricsOp(peer, request.id, std::get<protocol::MetricsArgs>(request.args));
    case protocol::Op::kUnload:
      return models_.HandleUnload(peer, request.id, std::get<protocol::UnloadArgs>(request.args));
    case protocol::Op::kCancel:
      return CancelOp(peer, request.id, std::get<protocol::CancelArgs>(request.args));
    case protocol::Op::kAck:
      return AckOp(peer, std::get<protocol::AckArgs>(request.args));
    case protocol::Op::kStop:
      return StopOp(peer, request.id, std::get<protocol::StopArgs>(request.args));
    case protocol::Op::kJobs:
      return jobs_.HandleList(peer, request.id);
    case protocol::Op::kJobShow:
      return jobs_.HandleShow(peer, request.id, std::get<protocol::JobShowArgs>(request.args));
    case protocol::Op::kJobCancel:
      return jobs_.HandleCancel(peer, request.id, std::get<protocol::JobCancelArgs>(request.args));
    case protocol::Op::kJobResume:
      if (core_.stopping)
        return clients.Answer(peer, request.id, protocol::Op::kJobResume, ShuttingDown());
      return jobs_.HandleResume(peer, request.id, std::get<protocol::JobResumeArgs>(request.args));
    case protocol::Op::kJobRemove:
      return jobs_.HandleRemove(peer, request.id, std::get<protocol::JobRemoveArgs>(request.args));
    case protocol::Op::kPckInfo:
      return prefixes_.HandleInfo(peer, request.id, std::get<protocol::PckInfoArgs>(request.args));
    case protocol::Op::kExpertStats:
      return looks_.HandleExpertStats(peer, request.id,
                                      std::get<protocol::ExpertStatsArgs>(request.args));
    case protocol::Op::kPckClean:
    case protocol::Op::kScore:
    case protocol::Op::kJobStart:
    case protocol::Op::kJobAttach:
    case protocol::Op::kModels:
    case protocol::Op::kLoad:
    case protocol::Op::kRun:
    case protocol::Op::kTokenize:
    case protocol::Op::kDetokenize:
    case protocol::Op::kVerify:
    case protocol::Op::kBuild:
    case protocol::Op::kBench:
    case protocol::Op::kSessions:
    case protocol::Op::kSessionNew:
    case protocol::Op::kSessionShow:
    case protocol::Op::kSessionFork:
    case protocol::Op::kSessionUndo:
    case protocol::Op::kSessionRename:
    case protocol::Op::kSessionRemove:
    case protocol::Op::kSessionSave:
    case protocol::Op::kSessionRestore:
    case protocol::Op::kSessionDiff:
    case protocol::Op::kAbsorb:
    case protocol::Op::kShadow:
    case protocol::Op::kEval:
    case protocol::Op::kCompare:
      return Start(peer, std::move(request));
  }
}

// Ops that take their time: they become an open request.
void Server::Start(const std::string& peer, protocol::Request request) {
  const uint64_t id = request.id;
  const protocol::Op op = protocol::OpOf(request);
  ClientRequest* opened = parts_->clients->Open(peer, std::move(request), Clock::now());
  if (opened == nullptr) {
    return parts_->clients->Answer(
        peer, id, op,
        protocol::Error{protocol::ErrorCode::kBadRequest,
                        "request id " + std::to_string(id) + " is in use on this connection",
                        "number requests upwards",
                        {}});
  }
  if (core_.stopping) return parts_->clients->Finish(*opened, ShuttingDown());
  switch (opened->op) {
    case protocol::Op::kModels:
      return models_.HandleModels(*opened);
    case protocol::Op::kLoad:
      return models_.HandleLoad(*opened);
    case protocol::Op::kRun:
      return runs_.Handle(*opened);
    case protocol::Op::kScore:
      return runs_.HandleScore(*opened);
    case protocol::Op::kTokenize:
      return texts_.HandleTokenize(*opened);
    case protocol::Op::kDetokenize:
      return texts_.HandleDetokenize(*opened);
    case protocol::Op::kVerify:
    case protocol::Op::kBuild:
    case protocol::Op::kBench:
    case protocol::Op::kAbsorb:
    case protocol::Op::kShadow:
    case protocol::Op::kEval:
    case protocol::Op::kCompare:
      return jobs_.HandleWork(*opened);
    case protocol::Op::kJobStart:
      return jobs_.HandleStart(*opened);
    case protocol::Op::kJobAttach:
      return jobs_.HandleAttach(*opened);
    case protocol::Op::kSessions:
    case protocol::Op::kSessionNew:
    case protocol::Op::kSessionShow:
    case protocol::Op::kSessionFork:
    case protocol::Op::kSessionUndo:
    case protocol::Op::kSessionRename:
    case protocol::Op::kSessionRemove:
    case protocol::Op::kSessionSave:
    case protocol::Op::kSessionRestore:
    case protocol::Op::kSessionDiff:
      return sessions_.Handle(*opened);
    case protocol::Op::kPckClean:
      return prefixes_.HandleClean(*opened);
    case protocol::Op::kHello:
    case protocol::Op::kPing:
    case protocol::Op::kStatus:
    case protocol::Op::kMetrics:
    case protocol::Op::kUnload:
    case protocol::Op::kCancel:
    case protocol::Op::kAck:
    case protocol::Op::kStop:
    case protocol::Op::kJobs:
    case protocol::Op::kJobShow:
    case protocol::Op::kJobCancel:
    case protocol::Op::kJobResume:
    case protocol::Op::kJobRemove:
    case protocol::Op::kPckInfo:
    case protocol::Op::kExpertStats:
      break;  // Control() has them
  }
  parts_->clients->Finish(
      *opened, protocol::Error{protocol::ErrorCode::kInternal, "an op went the wrong way", {}, {}});
}

void Server::Hello(const std::string& peer, uint64_t id, const protocol::HelloArgs& args) {
  auto version = protocol::Negotiate(protocol::Side::kClient, args.protocol_min, args.protocol_max,
                                     args.build_id);
  if (!version) {
    return parts_->clients->Answer(peer, id, protocol::Op::kHello, version.error());
  }
  if (!args.client.empty()) {
    parts_->clients->SetName(
        peer, args.pid > 0 ? args.client + " " + std::to_string(args.pid) : args.client);
  }
  protocol::HelloDone done;
  done.protocol = *version;
  done.version = protocol::Version();
  done.build_id = protocol::BuildId();
  done.pid = static_cast<uint64_t>(getpid());
  parts_->clients->Answer(peer, id, protocol::Op::kHello, std::move(done));
}

void Server::StatusOp(const std::string& peer, uint64_t id) {
  const auto now = Clock::now();
  protocol::StatusDone done =
      BuildStatus(core_, jobs_.board(), identity_, parts_->transport->connections(), now);
  done.counters["program_replaced"] = parts_->program.Look(now) ? 1 : 0;
  parts_->clients->Answer(peer, id, protocol::Op::kStatus, std::move(done));
}

void Server::MetricsOp(const std::string& peer, uint64_t id, const protocol::MetricsArgs& args) {
  const MetricSheet sheet =
      CollectMetrics(core_, jobs_.board(), identity_, parts_->transport->connections());
  protocol::MetricsDone done;
  if (args.form == "families") {
    done.families = sheet.ToWire();
  } else {
    done.text = sheet.ToText();
  }
  parts_->clients->Answer(peer, id, protocol::Op::kMetrics, std::move(done));
}

void Server::StopOp(const std::string& peer, uint64_t id, const protocol::StopArgs& args) {
  parts_->clients->Answer(
      peer, id, protocol::Op::kStop,
      protocol::StopDone{static_cast<uint64_t>(getpid()), !parts_->owns_socket});
  BeginStop(args.grace_ms ? std::chrono::milliseconds(*args.grace_ms) : kDefaultGrace,
            "a client asked for it");
}

void Server::CancelOp(const std::string& peer, uint64_t id, const protocol::CancelArgs& args) {
  ClientRequest* request = parts_->clients->Find(peer, args.request);
  const bool found = request != nullptr && !request->final;
  parts_->clients->Answer(peer, id, protocol::Op::kCancel, protocol::CancelDone{found});
  if (!found) return;
  if (!request->control->cancelled.load()) parts_->metrics.Add(Counter::kStoppedByClient);
  if (request->phase == RequestPhase::kScheduled) {
    // The task itself says how far it came.
    request->control->cancelled.store(true);
    parts_->scheduler->Wake();
  } else {
    EndRequest(*request, {protocol::ErrorCode::kCancelled, "cancelled", {}, {}});
  }
}

void Server::AckOp(const std::string& peer, const protocol::AckArgs& args) {
  ClientRequest* request = parts_->clients->Find(peer, args.request);
  if (request == nullptr) {
    // It ended meanwhile. A client that was dropped in its silence does not know, and would wait.
    if (!parts_->clients->EverOpened(peer, args.request)) {
      parts_->clients->Reply(
          peer, args.request,
          protocol::Error{protocol::ErrorCode::kCancelled,
                          "no such request: it ended while the client was silent",
                          "run it again",
                          {}});
    }
    return;
  }
  parts_->clients->Acknowledge(*request, args.seq);
  if (request->phase == RequestPhase::kScheduled) parts_->scheduler->Wake();
}

void Server::TakeEvents() {
  parts_->events.event().Clear();
  for (size_t i = 0; i < kEventsPerRound; ++i) {
    auto event = parts_->events.TryPop();
    if (!event) return;
    Take(std::move(*event));
  }
  // More may wait: look again in the next round.
  parts_->events.event().Signal();
}

void Server::Take(IoEvent event) {
  if (auto* scheduler = std::get_if<SchedulerEvent>(&event)) {
    if (!jobs_.OnSchedulerEvent(*scheduler)) runs_.OnSchedulerEvent(std::move(*scheduler));
  } else if (auto* prepared = std::get_if<RunPrepared>(&event)) {
    runs_.OnPrepared(std::move(*prepared));
  } else if (auto* progress = std::get_if<LoadProgress>(&event)) {
    models_.OnProgress(*progress);
  } else if (auto* finished = std::get_if<LoadFinished>(&event)) {
    models_.OnFinished(std::move(*finished));
  } else if (auto* job = std::get_if<JobEvent>(&event)) {
    jobs_.OnEvent(std::move(*job));
  } else if (auto* call = std::get_if<IoCall>(&event)) {
    call->run();
  } else if (auto* done = std::get_if<WorkDone>(&event)) {
    ClientRequest* request = parts_->clients->Find(done->key);
    if (request == nullptr) return;
    parts_->clients->Finish(*request, done->result
                                          ? std::move(*done->result)
                                          : protocol::Body(std::move(done->result.error())));
  }
}

// Ends a request for a reason that is not its client's wish, at once where nobody works on it.
void Server::EndRequest(ClientRequest& request, protocol::Error reason) {
  request.control->cancelled.store(true);
  if (request.phase == RequestPhase::kScheduled) {
    if (!request.verdict) request.verdict = std::move(reason);
    parts_->scheduler->Wake();
    return;
  }
  // Whatever still works on it sees the flag; its answer finds no request.
  jobs_.OnRequestEnds(request, reason.code == protocol::ErrorCode::kShuttingDown);
  parts_->registry->Release(request.key);
  parts_->clients->Finish(request, std::move(reason));
}

void Server::CancelLost() {
  for (const uint64_t key : parts_->clients->TakeLost()) {
    if (ClientRequest* request = parts_->clients->Find(key)) {
      const char* why = request->lost ? "the client left" : "the client was silent for too long";
      spdlog::info("{}; its {} is cancelled", why, protocol::InfoOf(request->op).name);
      parts_->metrics.Add(request->lost ? Counter::kStoppedClientLeft
                                        : Counter::kStoppedClientSilent);
      EndRequest(*request, {protocol::ErrorCode::kCancelled, why, {}, {}});
    }
  }
}

// Deadlines of requests that the scheduler does not have yet; it keeps those that it has.
void Server::CancelLate(Clock::time_point now) {
  std::vector<uint64_t> late;
  for (const auto& [key, request] : core_.clients.requests()) {
    if (request->final || request->phase == RequestPhase::kScheduled) continue;
    if (request->deadline && *request->deadline <= now) late.push_back(key);
  }
  for (const uint64_t key : late) {
    // The end of one may have ended another.
    ClientRequest* request = parts_->clients->Find(key);
    if (request == nullptr || request->final) continue;
    parts_->metrics.Add(Counter::kStoppedDeadline);
    EndRequest(*request,
               {protocol::ErrorCode::kTimeout, "the request's time is up", "raise --timeout", {}});
  }
}

}  // namespace mk::daemon
