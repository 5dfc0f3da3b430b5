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

  // Makes the request a user of the model in its precision, at once or when that has come; then
  // `on_ready` is called. A request that cannot have it is answered.
  void Acquire(ClientRequest& request, const protocol::ModelSelector& selector,
               std::optional<std::chrono::milliseconds> keep_alive = {});
  // The precision that a request names; "auto" is the config's.
  Precision PrecisionOf(const std::string& name) const;
  void OnProgress(const LoadProgress& progress);
  void OnFinished(LoadFinished finished);

  // Called for a request (other than load) whose model is there.
  std::function<void(ClientRequest&, ModelRegistry::Entry&)> on_ready;
  // Users of models that are no requests: their load is on its way, or over (without an entry: with
  // an error).
  std::function<void(uint64_t key, const protocol::Progress&)> on_other_progress;
  std::function<void(uint64_t key, ModelRegistry::Entry*, const Error*)> on_other_loaded;

 private:
  void Ready(ClientRequest& request, ModelRegistry::Entry& entry);
  void FinishLoad(ClientRequest& request, ModelRegistry::Entry& entry);
  // After out_of_memory: drops what nobody uses, if that is enough, and tries once more. True when
  // it does.
  bool RetryWithMoreRoom(const ModelRegistry::Outcome& outcome);

  Core& core_;
};

protocol::ModelStatus StatusOf(const Core& core, const ModelRegistry::Entry& entry,
                               Clock::time_point now);

}  // namespace mk::daemon
