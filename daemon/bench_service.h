// bench: the speed of a model, measured on the scheduler's thread with the executor for itself.
//
// A benchmark is refused while anything runs or waits; requests that come while it runs wait for
// its end.

#pragma once

#include <optional>

#include "daemon/core.h"
#include "daemon/model_service.h"

namespace mk::daemon {

class BenchService {
 public:
  BenchService(Core& core, ModelService& models) : core_(core), models_(models) {}

  void Handle(ClientRequest& request);
  void OnModelReady(ClientRequest& request, ModelRegistry::Entry& entry);

 private:
  // An error when other work would share the machine with the benchmark.
  std::optional<protocol::Error> Refuse(const ClientRequest& request) const;

  Core& core_;
  ModelService& models_;
};

}  // namespace mk::daemon
