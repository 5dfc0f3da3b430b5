// What the services of the I/O thread share.

#pragma once

#include <memory>
#include <string>

#include "daemon/client_table.h"
#include "daemon/config.h"
#include "daemon/io_event.h"
#include "daemon/ledger.h"
#include "daemon/metrics.h"
#include "daemon/model_catalog.h"
#include "daemon/model_registry.h"
#include "daemon/prefix_cache.h"
#include "daemon/scheduler.h"
#include "daemon/task_thread.h"

namespace mk::daemon {

struct Core {
  Config config;
  ModelFolders folders;
  int threads = 1;
  SchedulerLimits limits;
  bool stopping = false;
  bool job_holds_up = false;  // a job that no request waits for has the executor for itself

  Metrics& metrics;
  Ledger& ledger;
  ClientTable& clients;
  ModelRegistry& registry;
  std::shared_ptr<ModelCatalog> catalog;
  Scheduler& scheduler;
  TaskThread& aux;     // text and lists: short work
  TaskThread& states;  // reads and saves states: large files, and disks that take their time
  IoQueue& events;
  PrefixCache& prefixes;
  size_t keeping = 0;  // states of runs that have ended, until they are kept
};

// Canonical names of what a request selects. Errors: model_not_found, bad_request.
protocol::Result<ModelRef> ResolveSelector(const Core& core,
                                           const protocol::ModelSelector& selector);

}  // namespace mk::daemon
