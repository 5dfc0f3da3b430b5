// shadow as a job: a small copy of all experts of a model. It goes on at the layer that it was at
// when its daemon died.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/job_kind.h"
#include "daemon/jobs/read_pace.h"

namespace mk::daemon {

class ShadowKind : public JobKind {
 public:
  // Both outlive it.
  ShadowKind(const Core& core, const ReadLimit& limit) : core_(core), limit_(limit) {}

  std::string_view name() const override { return "shadow"; }
  bool resumable() const override { return true; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  void Forget(const protocol::JobRecord& record) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
  const ReadLimit& limit_;
};

}  // namespace mk::daemon
