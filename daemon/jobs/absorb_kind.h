// absorb as a job: a text of any length becomes a memory pack. It is read in the background, in
// slices that are runs beside others; what was read is saved now and then in the state folder, and
// a run of the job that follows goes on from there, with the bits of one that was never
// interrupted.

#pragma once

#include "daemon/core.h"
#include "daemon/jobs/engine_access.h"
#include "daemon/jobs/job_kind.h"

namespace mk::daemon {

class AbsorbKind : public JobKind {
 public:
  // Both outlive it. `folder`: of texts from standard input and of unfinished packs.
  AbsorbKind(const Core& core, EngineAccess& engine, std::string folder)
      : core_(core), engine_(engine), folder_(std::move(folder)) {}

  std::string_view name() const override { return "absorb"; }
  bool resumable() const override { return true; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec& spec) const override;
  void Forget(const protocol::JobRecord& record) const override;
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec& spec,
                                            JobContext& context) override;

 private:
  const Core& core_;
  EngineAccess& engine_;
  const std::string folder_;
};

// Removes what jobs of daemons that died have left in the folder, though nobody knows of them.
// `records`: of all jobs that are there. Younger files stay: their job may be on its way. Blocks on
// the disk.
void SweepAbsorbed(const std::string& folder, const std::vector<protocol::JobRecord>& records);

}  // namespace mk::daemon
