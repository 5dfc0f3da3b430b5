// compare as a job: two models on the same texts and tasks, and what may be said of the difference.
// It runs, is kept and goes on as eval does.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/engine_access.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

class CompareKind : public JobKind {
 public:
  // Both outlive it.
  CompareKind(const Core& core, EngineAccess& engine) : core_(core), engine_(engine) {}

  std::string_view name() const override { return "compare"; }
  bool resumable() const override { return true; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
  EngineAccess& engine_;
};

}  // namespace mk::daemon
