// bench as a job: the speed of a model, measured on the scheduler's thread with the executor for
// itself. Requests that come while it runs wait for its end.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/engine_access.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

class BenchKind : public JobKind {
 public:
  // Both outlive it.
  BenchKind(const Core& core, EngineAccess& engine) : core_(core), engine_(engine) {}

  std::string_view name() const override { return "bench"; }
  bool exclusive() const override { return true; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
  EngineAccess& engine_;
};

}  // namespace mk::daemon
