// models, load, unload, and the waiting for models that other ops do.

#pragma once

#include <functional>
#include <optional>

#include "daemon/core.h"

namespace mk::daemon {

class ModelService {
 public:
  explicit ModelService(Core& core) : core_(core) {}

  void HandleModels(ClientRequest& request);
  void HandleLoad(ClientRequest& request);
  void HandleUnload(const std::string& peer, uint64_t id, const protocol::UnloadArgs& args);

  // Makes the request a user of the model or lets it wait. Null, and the request has been
  // answered, when that cannot be; an entry that is not loaded yet calls back through OnReady.
  ModelRegistry::Entry* Acquire(ClientRequest& request, const protocol::ModelSelector& selector,
                                std::optional<std::chrono::milliseconds> keep_alive = {});
  void OnProgress(const LoadProgress& progress);
  void OnFinished(LoadFinished finished);

  // Called for a request (other than load) whose model has come.
  std::function<void(ClientRequest&, ModelRegistry::Entry&)> on_ready;

 private:
  void FinishLoad(ClientRequest& request, ModelRegistry::Entry& entry);
  // After out_of_memory: drops what nobody uses and tries once more. True when it does.
  bool RetryWithMoreRoom(const ModelRegistry::Outcome& outcome);

  Core& core_;
};

protocol::ModelStatus StatusOf(const ModelRegistry::Entry& entry, Clock::time_point now);

}  // namespace mk::daemon
