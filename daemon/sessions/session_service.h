// The ops about sessions, and the runs in them: whose turn it is, and what a run finds and leaves.
//
// The store and all that reads or writes states are the states thread's: what is asked one after
// the other is done in that order. So an op that was let in sees what was kept before it came.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "daemon/core.h"
#include "daemon/sessions/session_leases.h"
#include "daemon/sessions/session_run.h"
#include "daemon/sessions/session_store.h"

namespace mk::daemon {

class SessionService {
 public:
  // `folder`: of the sessions.
  SessionService(Core& core, const std::string& folder);

  // One of the ops on sessions.
  void Handle(ClientRequest& request);

  // A run in a session: waits for it, and reads what is there. Then `on_settled` is called with
  // what it left open filled in; one that cannot go on is answered.
  void Begin(ClientRequest& request);
  std::function<void(ClientRequest&)> on_settled;
  // Its model is there: RunPrepared comes of it.
  void Prepare(ClientRequest& request, std::shared_ptr<const LoadedModel> loaded);
  // Runs that have the session or wait for it.
  uint64_t RunsIn(const std::string& name) const { return leases_.Count(name); }
  // Runs before it in the queue for its session.
  uint64_t WaitingBefore(const ClientRequest& request) const { return leases_.Before(request.key); }

  // The config has changed.
  void ApplyConfig();

 private:
  using Work = std::function<Result<protocol::Body>()>;

  void Post(ClientRequest& request, Work work);
  void Busy(ClientRequest& request);
  bool RefuseHeld(ClientRequest& request, const std::vector<std::string>& names);
  void OnGranted(uint64_t key);
  void OnRead(uint64_t key, Result<std::optional<protocol::SessionRecord>> record);
  void List(ClientRequest& request);
  void New(ClientRequest& request, protocol::SessionNewArgs args);
  void Restore(ClientRequest& request, protocol::SessionRestoreArgs args);

  Core& core_;
  SessionStore store_;  // the states thread's
  SessionLeases leases_;
};

}  // namespace mk::daemon
