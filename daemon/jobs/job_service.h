// The ops about jobs, and what jobs tell their clients.
//
// A request of verify, build, bench, absorb, shadow, eval or compare starts a job, is told how far
// it is, and takes it along when it ends before its time; one of job_attach only watches.

#pragma once

#include <memory>
#include <string>

#include "daemon/core.h"
#include "daemon/jobs/engine_access.h"
#include "daemon/jobs/job_board.h"
#include "daemon/jobs/job_runner.h"
#include "daemon/jobs/job_writer.h"
#include "daemon/jobs/verify_kind.h"
#include "daemon/model_service.h"

namespace mk::daemon {

class JobService {
 public:
  // `folder`: of the records.
  JobService(Core& core, ModelService& models, const std::string& folder);
  ~JobService() { Stop(); }

  // verify, build, bench, absorb, shadow, eval, compare.
  void HandleWork(ClientRequest& request);
  void HandleStart(ClientRequest& request);
  void HandleAttach(ClientRequest& request);
  // The control ops.
  void HandleList(const std::string& peer, uint64_t id);
  void HandleShow(const std::string& peer, uint64_t id, const protocol::JobShowArgs& args);
  void HandleCancel(const std::string& peer, uint64_t id, const protocol::JobCancelArgs& args);
  void HandleResume(const std::string& peer, uint64_t id, const protocol::JobResumeArgs& args);
  void HandleRemove(const std::string& peer, uint64_t id, const protocol::JobRemoveArgs& args);

  void OnEvent(JobEvent event);
  bool OnSchedulerEvent(SchedulerEvent& event) { return engine_.OnSchedulerEvent(event); }
  // A request ends before its time: its own job goes with it. `shutdown`: the daemon leaves.
  void OnRequestEnds(ClientRequest& request, bool shutdown);
  // The config has changed.
  void ApplyConfig();
  // Once in a while: starts what waited for quiet, saves what could not be saved.
  void Tick(Clock::time_point now);
  // The daemon leaves: all jobs are interrupted.
  void Interrupt();
  // Ends the threads. Records that wait are written.
  void Stop();

  // No job runs or waits.
  bool idle() const { return !board_.busy(); }
  const JobBoard& board() const { return board_; }

 private:
  std::optional<protocol::Error> RefuseExclusive(const ClientRequest& request) const;
  bool Quiet() const;
  void StartSome();
  void Watch(Job& job, ClientRequest& request);
  void TellQueue();
  void TellProgress(const Job& job);
  void TellEnd(Job& job, const protocol::Error* error);
  void AnswerStarters(Job& job);
  protocol::Result<Job*> FindJob(const std::string& id);

  Core& core_;
  ReadLimit read_limit_{0};
  EngineAccess engine_;
  JobRunner runner_;
  std::unique_ptr<JobWriter> writer_;
  JobBoard board_;
  Clock::time_point next_save_;
};

}  // namespace mk::daemon
