// verify as a job: it goes on where it was when its daemon died, if the file is the same still.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/job_kind.h"
#include "daemon/jobs/read_pace.h"

namespace mk::daemon {

class VerifyKind : public JobKind {
 public:
  // Both outlive it.
  VerifyKind(const Core& core, const ReadLimit& limit) : core_(core), limit_(limit) {}

  std::string_view name() const override { return "verify"; }
  bool resumable() const override { return true; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
  const ReadLimit& limit_;
};

}  // namespace mk::daemon
