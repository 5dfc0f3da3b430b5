#include "daemon/sessions/session_service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/errors.h"
#include "daemon/sessions/session_ops.h"

namespace mk::daemon {
namespace {

using protocol::ErrorCode;

protocol::Error HeldByRun(const std::string& name) {
  return {ErrorCode::kBusy,
          "session " + name + " is in use by a run",
          "wait until it is over; `mk session ls` shows which are in use",
          {}};
}

// The work's answer as a reply's body.
template <typename Done>
Result<protocol::Body> AsBody(Result<Done> done) {
  if (!done) return Fail(done.error());
  return protocol::Body(std::move(*done));
}

}  // namespace

SessionService::SessionService(Core& core, const std::string& folder)
    : core_(core),
      store_(folder),
      leases_({[this](uint64_t key) { OnGranted(key); },
               [this](uint64_t key, uint64_t before) {
                 ClientRequest* request = core_.clients.Find(key);
                 if (request == nullptr || request->final) return;
                 request->told_position = before;
                 core_.clients.Send(*request, protocol::Progress{"queue", before, 0, "requests"});
               }}) {
  ApplyConfig();
  // What a daemon that died has left is seen to before anybody asks.
  const bool posted = core_.states.Post([this] {
    if (auto loaded = store_.Load(); !loaded) spdlog::error("{}", loaded.error().ToString());
  });
  if (!posted) spdlog::error("the sessions are read when they are first asked for");
}

void SessionService::ApplyConfig() {
  const SessionLimits limits{static_cast<uint64_t>(core_.config.session_states),
                             core_.config.session_states_limit > 0
                                 ? core_.config.session_states_limit
                                 : SessionLimits().state_bytes};
  const bool posted = core_.states.Post([this, limits] { store_.SetLimits(limits); });
  if (!posted) spdlog::warn("the new limits of sessions do not count yet: too much waits");
}

void SessionService::Busy(ClientRequest& request) {
  core_.clients.Finish(
      request, protocol::Error{ErrorCode::kBusy, "too many requests wait", "try again", {}});
}

void SessionService::Post(ClientRequest& request, Work work) {
  auto task = [this, key = request.key, control = request.control, work = std::move(work)] {
    if (control->cancelled.load()) return;  // answered already
    Result<protocol::Body> result = Fail(mk::ErrorCode::kInternal, "");
    if (auto loaded = store_.Load(); loaded) {
      result = work();
    } else {
      result = Fail(loaded.error());
    }
    WorkDone done{key, protocol::Body()};
    if (result) {
      done.result = std::move(*result);
    } else {
      done.result = protocol::Fail(ToPackError(result.error()));
    }
    core_.events.Push(std::move(done));
  };
  if (!core_.states.Post(std::move(task))) Busy(request);
}

// True: one of the sessions is a run's, and the request has been told.
bool SessionService::RefuseHeld(ClientRequest& request, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (leases_.Count(name) == 0) continue;
    core_.clients.Finish(request, HeldByRun(name));
    return true;
  }
  return false;
}

void SessionService::Handle(ClientRequest& request) {
  protocol::Args args = std::move(request.args);
  if (std::holds_alternative<protocol::SessionsArgs>(args)) {
    List(request);
  } else if (auto* add = std::get_if<protocol::SessionNewArgs>(&args)) {
    New(request, std::move(*add));
  } else if (auto* show = std::get_if<protocol::SessionShowArgs>(&args)) {
    const uint64_t runs = leases_.Count(show->name);
    Post(request, [this, name = show->name, runs]() -> Result<protocol::Body> {
      auto done = ShowSession(store_, name);
      if (!done) return Fail(done.error());
      done->session.in_use = runs > 0;
      done->session.waiting = runs > 0 ? runs - 1 : 0;
      return protocol::Body(std::move(*done));
    });
  } else if (auto* fork = std::get_if<protocol::SessionForkArgs>(&args)) {
    if (RefuseHeld(request, {fork->name})) return;
    Post(request, [this, fork = *fork]() -> Result<protocol::Body> {
      auto info = store_.Fork(fork.from, fork.name, fork.turns);
      if (!info) return Fail(info.error());
      return protocol::Body(protocol::SessionForkDone{std::move(*info)});
    });
  } else if (auto* undo = std::get_if<protocol::SessionUndoArgs>(&args)) {
    if (RefuseHeld(request, {undo->name})) return;
    Post(request, [this, undo = *undo] { return AsBody(UndoTurns(store_, undo)); });
  } else if (auto* rename = std::get_if<protocol::SessionRenameArgs>(&args)) {
    if (RefuseHeld(request, {rename->from, rename->name})) return;
    Post(request, [this, rename = *rename]() -> Result<protocol::Body> {
      auto info = store_.Rename(rename.from, rename.name);
      if (!info) return Fail(info.error());
      return protocol::Body(protocol::SessionRenameDone{std::move(*info)});
    });
  } else if (auto* remove = std::get_if<protocol::SessionRemoveArgs>(&args)) {
    if (RefuseHeld(request, remove->names)) return;
    Post(request, [this, names = remove->names]() -> Result<protocol::Body> {
      if (auto removed = store_.Remove(names); !removed) return Fail(removed.error());
      return protocol::Body(protocol::SessionRemoveDone{names.size()});
    });
  } else if (auto* save = std::get_if<protocol::SessionSaveArgs>(&args)) {
    Post(request, [this, save = *save] { return AsBody(SaveSession(store_, save)); });
  } else if (auto* restore = std::get_if<protocol::SessionRestoreArgs>(&args)) {
    Restore(request, std::move(*restore));
  } else if (auto* diff = std::get_if<protocol::SessionDiffArgs>(&args)) {
    Post(request, [this, diff = *diff] { return AsBody(DiffSessions(store_, diff)); });
  }
}

void SessionService::List(ClientRequest& request) {
  // Who holds which is known here, and what there is on the other thread.
  std::map<std::string, uint64_t> runs = leases_.Counts();
  Post(request, [this, runs = std::move(runs)]() -> Result<protocol::Body> {
    protocol::SessionsDone done{store_.List(), store_.troubles()};
    for (protocol::SessionInfo& info : done.sessions) {
      const auto found = runs.find(info.name);
      if (found == runs.end()) continue;
      info.in_use = true;
      info.waiting = found->second - 1;
    }
    return protocol::Body(std::move(done));
  });
}

void SessionService::New(ClientRequest& request, protocol::SessionNewArgs args) {
  if (RefuseHeld(request, {args.name})) return;
  auto ref = ResolveSelector(core_, args.model);
  if (!ref) return core_.clients.Finish(request, ref.error());
  args.model = {ref->path, ref->vocab_path, ref->rank_path};
  Post(request, [this, args = std::move(args)] { return AsBody(NewSession(store_, args)); });
}

void SessionService::Restore(ClientRequest& request, protocol::SessionRestoreArgs args) {
  if (RefuseHeld(request, {args.name})) return;
  if (!args.model.model.empty()) {
    auto ref = ResolveSelector(core_, args.model);
    if (!ref) return core_.clients.Finish(request, ref.error());
    args.model = {ref->path, ref->vocab_path, ref->rank_path};
  }
  Post(request, [this, args = std::move(args)] { return AsBody(RestoreSession(store_, args)); });
}

// ---------------------------------------------------------------- runs

void SessionService::Begin(ClientRequest& request) {
  const auto& args = std::get<protocol::RunArgs>(request.args);
  request.phase = RequestPhase::kPreparing;
  const uint64_t key = request.key;
  auto lease = leases_.Ask(args.session, key);
  // It may have been told that too much waits.
  if (ClientRequest* open = core_.clients.Find(key); open != nullptr && !open->final) {
    open->session_lease = std::move(lease);
  }
}

void SessionService::OnGranted(uint64_t key) {
  ClientRequest* request = core_.clients.Find(key);
  if (request == nullptr || request->final) return;
  auto task = [this, key, control = request->control,
               name = std::get<protocol::RunArgs>(request->args).session] {
    if (control->cancelled.load()) return;
    Result<std::optional<protocol::SessionRecord>> found = std::nullopt;
    if (auto loaded = store_.Load(); !loaded) {
      found = Fail(loaded.error());
    } else if (auto free = store_.CheckFree(name); !free && !store_.Has(name)) {
      found = Fail(free.error());
    } else if (store_.Has(name)) {
      auto record = store_.Read(name);
      if (record) {
        found = std::move(*record);
      } else {
        found = Fail(record.error());
      }
    }
    auto shared = std::make_shared<decltype(found)>(std::move(found));
    core_.events.Push(IoCall{[this, key, shared] { OnRead(key, std::move(*shared)); }});
  };
  if (!core_.states.Post(std::move(task))) Busy(*request);
}

void SessionService::OnRead(uint64_t key, Result<std::optional<protocol::SessionRecord>> record) {
  ClientRequest* request = core_.clients.Find(key);
  if (request == nullptr || request->final) return;
  if (!record) return core_.clients.Finish(*request, ToPackError(record.error()));
  auto& args = std::get<protocol::RunArgs>(request->args);
  const bool names_model = !args.model.model.empty();
  auto run = std::make_shared<SessionRun>(store_, args.session, std::move(*record));
  if (auto settled = run->Settle(args); !settled) {
    return core_.clients.Finish(*request, settled.error());
  }
  if (auto there = ResolveSelector(core_, args.model); !there && !names_model) {
    protocol::Error error = there.error();
    error.message = "the model of session " + run->name() + " is not there: " + error.message;
    error.hint = "name the file where it is now with --model";
    return core_.clients.Finish(*request, std::move(error));
  }
  request->keep_state = [run](const SharedState& state, protocol::Body& last) {
    return run->Keep(state, last);
  };
  request->session = std::move(run);
  on_settled(*request);
}

void SessionService::Prepare(ClientRequest& request, std::shared_ptr<const LoadedModel> loaded) {
  request.phase = RequestPhase::kPreparing;
  auto args =
      std::make_shared<protocol::RunArgs>(std::move(std::get<protocol::RunArgs>(request.args)));
  auto task = [key = request.key, control = request.control, run = request.session,
               loaded = std::move(loaded), args, precision = request.precision,
               &events = core_.events] {
    if (control->cancelled.load()) return;  // answered already
    events.Push(RunPrepared{key, run->Prepare(loaded, precision, std::move(*args))});
  };
  if (core_.states.Post(std::move(task))) return;
  core_.registry.Release(request.key);
  Busy(request);
}

}  // namespace mk::daemon
