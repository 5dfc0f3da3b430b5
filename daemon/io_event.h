// What other threads tell the I/O thread: plain values through one bounded queue.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <variant>

#include "daemon/bounded_queue.h"
#include "daemon/jobs/job_event.h"
#include "daemon/model_registry.h"
#include "daemon/scheduler.h"
#include "daemon/step_task.h"
#include "protocol/messages.h"

namespace mk::daemon {

// A request's prompt is encoded and its options are checked: it can go to the scheduler.
struct PreparedRun {
  std::unique_ptr<StepTask> task;
  uint64_t prompt_tokens = 0;
  uint64_t state_bytes = 0;  // what its sequence may grow to
  // To be called on a thread that may wait, before the task goes to the scheduler; may be empty.
  std::function<void()> fetch;
  Reservation held;  // what is reserved of that already
};
struct RunPrepared {
  uint64_t key = 0;
  protocol::Result<PreparedRun> run;
};
// Work outside the scheduler: text, lists of models.
struct WorkDone {
  uint64_t key = 0;
  protocol::Result<protocol::Body> result;
};

// Something to be done on the I/O thread.
struct IoCall {
  std::function<void()> run;
};

using IoEvent = std::variant<SchedulerEvent, LoadProgress, LoadFinished, RunPrepared, WorkDone,
                             JobEvent, IoCall>;
using IoQueue = BoundedQueue<IoEvent>;

// Events that may wait; a producer that is faster than the I/O thread waits itself.
inline constexpr size_t kIoQueueCapacity = 4096;

}  // namespace mk::daemon
