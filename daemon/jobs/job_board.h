// JobBoard: all jobs, in memory: which wait, which run, how they ended.
//
// It decides; what it decides is done elsewhere, through Actions. Heavy work runs so many at a time
// (one, by default), the rest waits in order of arrival. Of the jobs that have ended a bounded
// number is kept.
//
// Belongs to the loop's thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/jobs/job_event.h"
#include "daemon/jobs/job_kind.h"
#include "protocol/job_record.h"

namespace mk::daemon {

struct JobLimits {
  size_t at_once = 1;  // that run
  size_t max_queued = 64;
  size_t keep = 100;                                                // that have ended
  std::chrono::milliseconds keep_for{std::chrono::hours(24 * 30)};  // negative: for ever
};

struct Job {
  protocol::JobRecord record;
  JobKind* kind = nullptr;
  uint64_t run = 0;    // JobRunner's number; 0: it does not run
  uint64_t order = 0;  // of arrival in the queue
  // Why it was told to end; its end is then told so.
  enum class Stop { kNone, kCancel, kInterrupt } stop = Stop::kNone;
  uint64_t change = 0;          // number of the record's last change that is to be saved
  uint64_t tried = 0;           // number of the last change whose saving was tried
  bool saved = false;           // the last change is on disk
  bool save_failed = false;     // when it was last tried
  uint64_t owner = 0;           // request that started it and takes it along when it goes; 0: none
  std::set<uint64_t> watchers;  // requests that want to know, the owner among them
  std::vector<uint64_t> starters;  // requests that wait until it is saved
  // For the time that is left: when its stage began, and how far it was.
  std::chrono::steady_clock::time_point stage_began;
  uint64_t done_then = 0;
};

class JobBoard {
 public:
  // What the board has done. None may call back.
  struct Actions {
    std::function<protocol::Result<uint64_t>(JobKind&, const protocol::JobRecord&)> start;
    std::function<void(uint64_t run)> cancel;
    std::function<void(const protocol::JobRecord&, uint64_t change)> save;
    std::function<void(const std::string& id)> remove;
    std::function<uint64_t()> now_ms;  // since 1970
  };

  JobBoard(std::vector<std::unique_ptr<JobKind>> kinds, Actions actions);

  void SetLimits(const JobLimits& limits) { limits_ = limits; }

  // Jobs of daemons before this one. Those that had not ended are interrupted now.
  void Restore(std::vector<protocol::JobRecord> records);

  // Null: there is no such kind.
  JobKind* KindFor(const protocol::JobSpec& spec) const;
  // Puts a job into the queue; `spec` is prepared. Errors: kBusy when too many wait.
  protocol::Result<Job*> Add(JobKind& kind, protocol::JobSpec spec, const JobPlan& plan,
                             std::string asked_by, bool detached);
  // Starts what may start. `quiet`: no request runs, so that exclusive jobs may. Jobs that cannot
  // be started end; the jobs that have begun or ended.
  std::vector<Job*> StartSome(bool quiet);

  Job* Find(const std::string& id);
  Job* FindRun(uint64_t run);
  const std::map<std::string, std::unique_ptr<Job>>& jobs() const { return jobs_; }
  std::vector<Job*> InOrder() const;  // of creation
  size_t running() const;
  bool busy() const { return running() + queued() > 0; }
  size_t QueuedBefore(const Job& job) const;

  // One that waits has ended when this returns; one that runs ends soon. Errors: kBadRequest when
  // it has ended already.
  protocol::Status Cancel(Job& job);
  // The same for the daemon's own reasons: it can be resumed.
  void Interrupt(Job& job);
  // Puts it into the queue again. Errors: kBadRequest when it is not over or is done, kBusy.
  protocol::Status Resume(Job& job);
  // Forgets one that has ended. Errors: kBusy when it has not.
  protocol::Status CheckRemovable(const std::string& id) const;
  protocol::Status Remove(const std::string& id);
  size_t RemoveEnded();
  // Forgets those that are too many or too old.
  void Prune();

  // What JobRunner tells. The job, or null for one that is not known.
  Job* OnProgress(JobProgressed event, std::chrono::steady_clock::time_point now);
  void OnCheckpoint(JobCheckpointed event);
  Job* OnEnded(JobEnded event);
  Job* OnSaved(const JobSaved& event);
  // Tries again to save what could not be saved.
  void SaveAgain();
  // Why records are not on disk; "": they are.
  const std::string& trouble() const { return trouble_; }
  // Records cannot be kept at all, from the start.
  void SetTrouble(std::string why) { trouble_ = std::move(why); }

  protocol::JobStatus StatusOf(const Job& job) const;
  protocol::JobReport ReportOf(const Job& job) const { return {StatusOf(job), job.record.result}; }

 private:
  std::string NewId() const;
  size_t queued() const;
  bool exclusive_runs() const;
  bool StartOne(Job& job);
  void Save(Job& job);
  void End(Job& job, protocol::JobState state, std::optional<protocol::Error> error);
  void Forget(const std::string& id);

  const std::vector<std::unique_ptr<JobKind>> kinds_;
  const Actions actions_;
  JobLimits limits_;
  uint64_t last_order_ = 0;
  std::map<std::string, std::unique_ptr<Job>> jobs_;
  std::string trouble_;
};

}  // namespace mk::daemon
