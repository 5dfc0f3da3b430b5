// JobRunner: the threads that jobs run on, one each, at low priority.
//
// Start, Cancel, Join and Stop belong to one thread.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "daemon/jobs/job_event.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

class JobRunner {
 public:
  // `post` is called on the jobs' threads: for every run some JobProgressed and JobCheckpointed,
  // then one JobEnded. It may wait.
  explicit JobRunner(std::function<void(JobEvent)> post) : post_(std::move(post)) {}
  ~JobRunner() { Stop(); }
  JobRunner(const JobRunner&) = delete;
  JobRunner& operator=(const JobRunner&) = delete;

  // The number of the run. `kind` outlives it. Errors: kOutOfMemory when there is no thread to be
  // had.
  protocol::Result<uint64_t> Start(JobKind& kind, protocol::JobSpec spec, std::string checkpoint);
  void Cancel(uint64_t run);
  // After its JobEnded.
  void Join(uint64_t run);
  // Cancels all that run and waits for their ends.
  void Stop();

 private:
  struct Run {
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
    std::thread thread;
  };

  const std::function<void(JobEvent)> post_;
  uint64_t last_ = 0;
  std::map<uint64_t, Run> runs_;
};

}  // namespace mk::daemon
