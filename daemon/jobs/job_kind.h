// JobKind: what a kind of long work must be able to do to become a job.
//
// A job runs on a thread of its own beside the loop, tells how far it is, ends soon after it was
// cancelled, and may leave checkpoints: bytes of its own form from which a later run, of another
// daemon too, goes on.

#pragma once

#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/job_messages.h"
#include "protocol/job_record.h"
#include "protocol/messages.h"

namespace mk::daemon {

// What a running job is given. Thread-safe.
class JobContext {
 public:
  virtual ~JobContext() = default;

  // To be asked at least every tenth of a second; then Run() ends with kCancelled.
  virtual bool cancelled() const = 0;
  // May be called as often as one likes: what comes too soon after the last one is dropped.
  virtual void Report(protocol::Progress progress) = 0;
  // Replaces the one before. At most kMaxCheckpointBytes, else it is dropped. `done`: the progress
  // that it holds.
  virtual void SaveCheckpoint(std::string checkpoint, uint64_t done) = 0;
  // What the run before left; "": nothing.
  virtual const std::string& checkpoint() const = 0;
};

// What is known of a job before it runs.
struct JobPlan {
  std::string what;        // one line: JobStatus::what
  std::string model_path;  // the file that it is about
  protocol::Progress progress;
};

class JobKind {
 public:
  virtual ~JobKind() = default;

  virtual std::string_view name() const = 0;
  // It leaves checkpoints.
  virtual bool resumable() const { return false; }
  // It needs the machine for itself: it waits until no other job and no request runs.
  virtual bool exclusive() const { return false; }
  // Completes `spec`, whose member of this kind is set, so that it means the same whenever it is
  // run: paths become whole, settings of the daemon are filled in. On the loop's thread. Errors
  // refuse the job.
  virtual protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const = 0;
  // The job is forgotten: what its runs kept for the next one can go. On the loop's thread: no more
  // than to remove some files.
  virtual void Forget(const protocol::JobRecord& /*record*/) const {}
  // On the job's thread. Fills the member of this kind.
  virtual protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                                    JobContext& context) = 0;
};

}  // namespace mk::daemon
