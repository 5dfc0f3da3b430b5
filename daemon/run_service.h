// run: from a request to its last token. score: the same way, to the end of its texts.
//
//   admission -> session, if it is in one (SessionService) -> model (ModelService) -> prompt
//   encoded (aux thread; with memory packs, which are read first, the states thread) -> scheduler
//     -> state kept, if the run leaves one (states thread) -> done

#pragma once

#include "daemon/core.h"
#include "daemon/model_service.h"
#include "daemon/sessions/session_service.h"

namespace mk::daemon {

class RunService {
 public:
  RunService(Core& core, ModelService& models, SessionService& sessions)
      : core_(core), models_(models), sessions_(sessions) {
    sessions_.on_settled = [this](ClientRequest& request) { AcquireModel(request); };
  }

  void Handle(ClientRequest& request);
  void HandleScore(ClientRequest& request);
  void OnModelReady(ClientRequest& request, ModelRegistry::Entry& entry);
  void OnPrepared(RunPrepared prepared);
  void OnSchedulerEvent(SchedulerEvent event);

 private:
  struct PackRun;

  // An error when the request cannot be taken on now.
  std::optional<protocol::Error> Refuse(const ClientRequest& request) const;
  void PostPackRun(const std::shared_ptr<PackRun>& run);
  void PreparePackRun(const std::shared_ptr<PackRun>& run);
  void MakeRoomFor(const std::shared_ptr<PackRun>& run, uint64_t bytes);
  void TryRoomAgain();
  uint64_t WaitingBefore(const ClientRequest& request) const;
  void AcquireModel(ClientRequest& request);
  void OnScoreModelReady(ClientRequest& request, ModelRegistry::Entry& entry);
  bool HoldsUpOthers(const ClientRequest& request) const;
  void OnNeedsRoom(ClientRequest& request, const RequestNeedsRoom& needs);
  protocol::Error NoRoomFor(const ClientRequest& request, uint64_t bytes) const;
  void CountStart(const ClientRequest& request);
  void TellPositions();
  void OnFinished(ClientRequest& request, RequestFinished finished);
  protocol::Body LastMessage(const ClientRequest& request, RequestFinished& finished);
  void Close(ClientRequest& request, protocol::Body last);
  void FillTiming(const ClientRequest& request, protocol::Timing& timing) const;

  // Whose pack waits for memory that other runs have.
  std::vector<std::shared_ptr<PackRun>> without_room_;
  Core& core_;
  ModelService& models_;
  SessionService& sessions_;
};

}  // namespace mk::daemon
