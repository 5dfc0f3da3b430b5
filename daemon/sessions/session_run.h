// SessionRun: a run in a session, from the record that it found to the turn that it leaves.
//
//   I/O thread      Settle(): what the request leaves open is the session's
//   states thread   Prepare(): the prompt and the state to go on from, once the model is there
//   states thread   Keep(): the turn, on disk before the client hears of its end
//
// One after the other; never two at once.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/io_event.h"
#include "daemon/model_registry.h"
#include "daemon/run_state.h"
#include "daemon/sessions/session_store.h"
#include "protocol/messages.h"
#include "protocol/session_record.h"

namespace mk::daemon {

class SessionRun {
 public:
  // `record`: of the session; none: it is to be made.
  SessionRun(SessionStore& store, std::string name, std::optional<protocol::SessionRecord> record);

  // Fills in what `args` leaves open, but for what has to be said. Errors: incompatible (the
  // session is of another kind, precision or form), bad_request (nothing to go on with).
  protocol::Status Settle(protocol::RunArgs& args);
  // Errors: incompatible_pack (of another model), those of PrepareRun.
  protocol::Result<PreparedRun> Prepare(std::shared_ptr<const LoadedModel> loaded,
                                        Precision precision, protocol::RunArgs args);
  // See KeepState. A turn in which nothing was said leaves the session as it was.
  protocol::Status Keep(const SharedState& state, protocol::Body& last);

  const std::string& name() const { return name_; }
  const protocol::SessionRecord& record() const { return record_; }

 private:
  protocol::Status TakeBack(uint64_t turns);
  protocol::Status SettleModel(protocol::RunArgs& args) const;
  protocol::Status SettleForm(protocol::RunArgs& args);
  protocol::Status CheckModel(const LoadedModel& loaded) const;
  void TakeModel(const LoadedModel& loaded, Precision precision, const protocol::RunArgs& args);
  protocol::Status GiveText(protocol::RunArgs& args, RunStart& start);
  protocol::Status GiveConversation(protocol::RunArgs& args, RunStart& start);
  SharedState LongestKept(const std::vector<int32_t>& prompt);
  SharedState StateAfter(size_t turns);
  SharedState Reload(protocol::SessionTurnRecord& turn, const std::vector<int32_t>& tokens);
  void GiveUp(protocol::SessionTurnRecord& turn, const Error& error);
  protocol::SessionTurnRecord TurnOf(const RunState& state, const protocol::RunDone& done) const;

  SessionStore& store_;
  const std::string name_;
  const bool created_;
  protocol::SessionRecord record_;
  std::shared_ptr<const LoadedModel> loaded_;
  std::optional<std::string> user_;  // what is said
  bool chat_ = false;
  uint64_t replaced_ = 0;  // turns whose place it takes
  uint64_t known_ = 0;     // tokens of the state that it goes on from
  double reload_ms_ = 0;   // that it took to read it
  std::vector<std::string> warnings_;
};

}  // namespace mk::daemon
