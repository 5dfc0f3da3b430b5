// What the threads of jobs tell the loop.

#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "engine/base/result.h"
#include "protocol/error.h"
#include "protocol/job_messages.h"
#include "protocol/messages.h"

namespace mk::daemon {

// `run` is the number that JobRunner::Start() gave.
struct JobProgressed {
  uint64_t run = 0;
  protocol::Progress progress;
};
struct JobCheckpointed {
  uint64_t run = 0;
  std::string checkpoint;
  uint64_t done = 0;
};
struct JobEnded {
  uint64_t run = 0;
  protocol::Result<protocol::JobResult> result;
};
// Of the record after so many changes.
struct JobSaved {
  std::string id;
  uint64_t change = 0;
  Status status;
};

using JobEvent = std::variant<JobProgressed, JobCheckpointed, JobEnded, JobSaved>;

}  // namespace mk::daemon
