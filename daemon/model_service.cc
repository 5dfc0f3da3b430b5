#include "daemon/model_service.h"

#include <cmath>
#include <utility>

#include "daemon/errors.h"

namespace mk::daemon {
namespace {

double MillisecondsSince(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

const protocol::ModelSelector& SelectorOf(const ClientRequest& request) {
  if (const auto* load = std::get_if<protocol::LoadArgs>(&request.args)) return load->model;
  return std::get<protocol::RunArgs>(request.args).model;
}

protocol::ModelEntry ToWire(const CatalogEntry& entry) {
  protocol::ModelEntry wire;
  wire.name = entry.name;
  wire.path = entry.path;
  wire.origin = entry.origin;
  wire.is_default = entry.is_default;
  wire.file_bytes = entry.file_bytes;
  wire.architecture = entry.architecture;
  wire.error = entry.error;
  return wire;
}

}  // namespace

protocol::Result<ModelRef> ResolveSelector(const Core& core,
                                           const protocol::ModelSelector& selector) {
  auto path = ResolveModel(selector.model, core.config, core.folders);
  if (!path) return protocol::Fail(ToModelError(path.error()));
  ModelRef ref{*path, {}, {}};
  if (!selector.vocab.empty()) ref.vocab_path = CanonicalPath(selector.vocab);
  if (!selector.rank_file.empty()) ref.rank_path = CanonicalPath(selector.rank_file);
  return ref;
}

protocol::ModelStatus StatusOf(const ModelRegistry::Entry& entry, Clock::time_point now) {
  protocol::ModelStatus status;
  status.path = entry.ref.path;
  status.file_bytes = entry.identity.size;
  status.progress = entry.progress;
  status.users = entry.users.size() + entry.waiting.size();
  status.keep_alive_ms = entry.keep_alive.count() < 0 ? -1 : entry.keep_alive.count();
  status.state = !entry.loaded ? "loading" : entry.superseded ? "replaced" : "ready";
  if (entry.loaded) {
    const ModelInfo& info = entry.loaded->model->info();
    status.architecture = info.architecture;
    status.fingerprint = info.fingerprint;
    status.memory_bytes = entry.loaded->model->resident_bytes();
    if (entry.users.empty()) {
      status.idle_ms = static_cast<uint64_t>(MillisecondsSince(entry.last_used, now));
    }
  }
  return status;
}

// Reading the headers of many files takes its time: not on this thread.
void ModelService::HandleModels(ClientRequest& request) {
  std::set<std::string> loaded;
  for (const auto& [id, entry] : core_.registry.entries()) {
    if (entry->loaded) loaded.insert(entry->ref.path);
  }
  auto task = [key = request.key, catalog = core_.catalog, config = core_.config,
               folders = core_.folders, loaded = std::move(loaded), &events = core_.events] {
    protocol::ModelsDone done;
    for (const CatalogEntry& entry : catalog->List(config, folders)) {
      done.models.push_back(ToWire(entry));
      done.models.back().loaded = loaded.count(entry.path) > 0;
    }
    events.Push(WorkDone{key, protocol::Body(std::move(done))});
  };
  if (!core_.aux.Post(std::move(task))) {
    core_.clients.Finish(
        request,
        protocol::Error{protocol::ErrorCode::kBusy, "too many requests wait", "try again", {}});
  }
}

void ModelService::HandleLoad(ClientRequest& request) {
  const auto& args = std::get<protocol::LoadArgs>(request.args);
  std::optional<std::chrono::milliseconds> keep_alive;
  if (args.keep_alive_ms) keep_alive = std::chrono::milliseconds(*args.keep_alive_ms);
  core_.clients.Send(request, protocol::Accepted{});
  ModelRegistry::Entry* entry = Acquire(request, args.model, keep_alive);
  if (entry != nullptr && entry->loaded) FinishLoad(request, *entry);
}

void ModelService::FinishLoad(ClientRequest& request, ModelRegistry::Entry& entry) {
  const auto now = Clock::now();
  core_.registry.Release(request.key);
  protocol::LoadDone done;
  done.model = StatusOf(entry, now);
  done.was_loaded = request.was_loaded;
  done.load_ms = static_cast<uint64_t>(std::llround(request.load_ms));
  done.warnings = entry.loaded->warnings;
  if (!entry.loaded->tokenizer) done.warnings.push_back(entry.loaded->tokenizer_error.ToString());
  core_.clients.Finish(request, std::move(done));
}

void ModelService::HandleUnload(const std::string& peer, uint64_t id,
                                const protocol::UnloadArgs& args) {
  if (args.model.empty()) {
    return core_.clients.Reply(peer, id, protocol::UnloadDone{core_.registry.UnloadIdle()});
  }
  auto path = ResolveModel(args.model, core_.config, core_.folders);
  // A file that was removed can still be unloaded by its path.
  const std::string wanted = path ? *path : args.model;
  std::vector<ModelRef> refs;
  for (const auto& [key, entry] : core_.registry.entries()) {
    if (entry->ref.path == wanted && entry->loaded && !entry->superseded)
      refs.push_back(entry->ref);
  }
  if (refs.empty()) {
    return core_.clients.Reply(peer, id,
                               protocol::Error{protocol::ErrorCode::kModelNotFound,
                                               wanted + " is not loaded",
                                               "mk status shows what is",
                                               {}});
  }
  uint64_t unloaded = 0;
  for (const ModelRef& ref : refs) {
    auto status = core_.registry.Unload(ref);
    if (!status) {
      protocol::Error error = ToModelError(status.error());
      error.code = protocol::ErrorCode::kBusy;
      return core_.clients.Reply(peer, id, std::move(error));
    }
    ++unloaded;
  }
  core_.clients.Reply(peer, id, protocol::UnloadDone{unloaded});
}

ModelRegistry::Entry* ModelService::Acquire(ClientRequest& request,
                                            const protocol::ModelSelector& selector,
                                            std::optional<std::chrono::milliseconds> keep_alive) {
  auto ref = ResolveSelector(core_, selector);
  if (!ref) {
    core_.clients.Finish(request, ref.error());
    return nullptr;
  }
  request.model_path = ref->path;
  auto entry = core_.registry.Acquire(*ref, request.key, keep_alive);
  if (!entry) {
    core_.clients.Finish(request, ToModelError(entry.error()));
    return nullptr;
  }
  request.phase = RequestPhase::kLoading;
  request.was_loaded = (*entry)->loaded != nullptr;
  return *entry;
}

void ModelService::OnProgress(const LoadProgress& progress) {
  core_.registry.OnProgress(progress);
  const ModelRegistry::Entry* entry = core_.registry.Find(progress.model);
  if (entry == nullptr) return;
  const auto now = Clock::now();
  for (const uint64_t key : entry->waiting) {
    if (ClientRequest* request = core_.clients.Find(key)) {
      const auto bytes = static_cast<double>(entry->identity.size) * progress.fraction;
      core_.clients.SendProgress(
          *request, {"load", static_cast<uint64_t>(bytes), entry->identity.size, "bytes"}, now);
    }
  }
}

bool ModelService::RetryWithMoreRoom(const ModelRegistry::Outcome& outcome) {
  if (outcome.error->code != ErrorCode::kOutOfMemory) return false;
  bool first_time = true;
  for (const uint64_t key : outcome.requests) {
    ClientRequest* request = core_.clients.Find(key);
    if (request != nullptr && request->load_retried) first_time = false;
  }
  if (!first_time || core_.registry.UnloadIdle() == 0) return false;
  for (const uint64_t key : outcome.requests) {
    ClientRequest* request = core_.clients.Find(key);
    if (request == nullptr) continue;
    request->load_retried = true;
    Acquire(*request, SelectorOf(*request));
    request->was_loaded = false;
  }
  return true;
}

void ModelService::OnFinished(LoadFinished finished) {
  const ModelRegistry::Outcome outcome = core_.registry.OnFinished(std::move(finished));
  if (outcome.error && RetryWithMoreRoom(outcome)) return;
  const auto now = Clock::now();
  for (const uint64_t key : outcome.requests) {
    ClientRequest* request = core_.clients.Find(key);
    if (request == nullptr) continue;
    request->load_ms = MillisecondsSince(request->arrived, now);
    if (outcome.error) {
      core_.clients.Finish(*request, ToModelError(*outcome.error));
    } else if (request->op == protocol::Op::kLoad) {
      FinishLoad(*request, *outcome.entry);
    } else {
      on_ready(*request, *outcome.entry);
    }
  }
}

}  // namespace mk::daemon
