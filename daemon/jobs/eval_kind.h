// eval as a job: what a model is worth on texts and tasks. It runs in the background, beside other
// requests; what was done is kept now and then, and a run that follows goes on from there, with the
// result of one that was never interrupted.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/engine_access.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

class EvalKind : public JobKind {
 public:
  // Both outlive it.
  EvalKind(const Core& core, EngineAccess& engine) : core_(core), engine_(engine) {}

  std::string_view name() const override { return "eval"; }
  bool resumable() const override { return true; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
  EngineAccess& engine_;
};

}  // namespace mk::daemon
