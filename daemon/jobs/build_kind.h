// build as a job. The file appears complete or not at all, so one that was interrupted starts over.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

class BuildKind : public JobKind {
 public:
  explicit BuildKind(const Core& core) : core_(core) {}

  std::string_view name() const override { return "build"; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
};

}  // namespace mk::daemon
