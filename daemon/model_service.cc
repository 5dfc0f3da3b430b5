#include "daemon/model_service.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "daemon/errors.h"
#include "daemon/memory_text.h"

namespace mk::daemon {
namespace {

double MillisecondsSince(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

const protocol::ModelSelector& SelectorOf(const ClientRequest& request) {
  if (const auto* load = std::get_if<protocol::LoadArgs>(&request.args)) return load->model;
  return std::get<protocol::RunArgs>(request.args).model;
}

const protocol::StreamWish& StreamWishOf(const ClientRequest& request) {
  static const protocol::StreamWish kNone;
  if (const auto* load = std::get_if<protocol::LoadArgs>(&request.args)) return load->stream;
  if (const auto* run = std::get_if<protocol::RunArgs>(&request.args)) return run->stream;
  if (const auto* score = std::get_if<protocol::ScoreArgs>(&request.args)) return score->stream;
  return kNone;
}

std::optional<std::chrono::milliseconds> KeepAliveOf(const ClientRequest& request) {
  const auto* load = std::get_if<protocol::LoadArgs>(&request.args);
  if (load == nullptr || !load->keep_alive_ms) return std::nullopt;
  return std::chrono::milliseconds(*load->keep_alive_ms);
}

// Names of the precisions that a loaded model holds.
std::vector<std::string> PrecisionsOf(const ModelRegistry::Entry& entry) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kPrecisions; ++i) {
    const auto precision = static_cast<Precision>(i);
    if (entry.Holds(precision)) names.emplace_back(PrecisionName(precision));
  }
  return names;
}

// Who holds a model or waits for it: requests of clients, and jobs.
struct Holders {
  std::vector<std::string> names;  // "CLIENT OP"
  uint64_t state_bytes = 0;        // of the runs among them
};

Holders HoldersOf(const Core& core, const ModelRegistry::Entry& entry) {
  std::set<uint64_t> keys = entry.users;
  for (const auto& [precision, preparation] : entry.preparing) {
    keys.insert(preparation.waiting.begin(), preparation.waiting.end());
  }
  Holders holders;
  for (const uint64_t key : keys) {
    const ClientRequest* request = core.clients.Find(key);
    if (request == nullptr) {
      holders.names.emplace_back("a job");
      continue;
    }
    holders.names.push_back(core.clients.NameOf(*request) + " " +
                            std::string(protocol::InfoOf(request->op).name));
    holders.state_bytes += request->control->state_bytes.load();
  }
  return holders;
}

// That a model cannot go, and who holds it.
protocol::Error InUse(const std::string& path, const std::vector<std::string>& holders) {
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(holders.size(), kNamed); ++i) {
    names += (i == 0 ? "" : ", ") + holders[i];
  }
  if (holders.size() > kNamed) names += " and " + std::to_string(holders.size() - kNamed) + " more";
  return {protocol::ErrorCode::kBusy,
          path + " is in use: " + names,
          "cancel them or wait until they are done; mk ps shows who holds it",
          {{"users", static_cast<int64_t>(holders.size())}}};
}

// How far the load is that makes the model usable.
double LoadProgressOf(const ModelRegistry::Entry& entry) {
  if (entry.loaded) return 1;
  double progress = 0;
  for (const auto& [precision, preparation] : entry.preparing) {
    progress = std::max(progress, preparation.progress);
  }
  return progress;
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

// Chat template of the vocabulary; empty without one.
std::string DialectOf(const LoadedModel& loaded) {
  if (!loaded.tokenizer) return {};
  const auto dialect = loaded.tokenizer->default_dialect();
  return dialect ? std::string(ChatDialectName(*dialect)) : std::string();
}

protocol::ModelStatus StatusOf(const Core& core, const ModelRegistry::Entry& entry,
                               Clock::time_point now) {
  protocol::ModelStatus status;
  status.path = entry.ref.path;
  status.file_bytes = entry.identity.size;
  status.progress = LoadProgressOf(entry);
  status.users = entry.users.size() + entry.waiting();
  status.keep_alive_ms = entry.keep_alive.count() < 0 ? -1 : entry.keep_alive.count();
  status.pinned = entry.pinned;
  if (const auto expires = entry.expires()) {
    status.expires_ms = static_cast<uint64_t>(std::max(0.0, MillisecondsSince(now, *expires)));
  }
  status.memory["weights"] = entry.memory_bytes();
  Holders holders = HoldersOf(core, entry);
  status.memory["sequences"] = holders.state_bytes;
  status.holders = std::move(holders.names);
  status.state = !entry.loaded ? "loading" : entry.superseded ? "replaced" : "ready";
  status.precisions = PrecisionsOf(entry);
  for (const auto& [precision, preparation] : entry.preparing) {
    status.preparing.emplace_back(PrecisionName(precision));
  }
  if (entry.loaded) {
    const ModelInfo& info = entry.loaded->model->info();
    status.architecture = info.architecture;
    status.fingerprint = info.fingerprint;
    status.memory_bytes = entry.loaded->model->resident_bytes();
    status.chat_dialect = DialectOf(*entry.loaded);
    status.stream = StreamStatusOf(*entry.loaded->model);
    if (entry.idle()) {
      status.idle_ms = static_cast<uint64_t>(MillisecondsSince(entry.last_used, now));
    }
  }
  return status;
}

// Reading the headers of many files takes its time: not on this thread.
void ModelService::HandleModels(ClientRequest& request) {
  std::map<std::string, std::vector<std::string>> loaded;  // path to precisions
  for (const auto& [id, entry] : core_.registry.entries()) {
    if (entry->loaded && !entry->superseded) loaded[entry->ref.path] = PrecisionsOf(*entry);
  }
  auto task = [key = request.key, catalog = core_.catalog, config = core_.config,
               folders = core_.folders, loaded = std::move(loaded), &events = core_.events] {
    protocol::ModelsDone done;
    for (const CatalogEntry& entry : catalog->List(config, folders)) {
      done.models.push_back(ToWire(entry));
      const auto found = loaded.find(entry.path);
      if (found == loaded.end()) continue;
      done.models.back().loaded = true;
      done.models.back().precisions = found->second;
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
  request.precision = PrecisionOf(args.precision);
  core_.clients.Send(request, protocol::Accepted{});
  Acquire(request, args.model, KeepAliveOf(request));
}

void ModelService::Ready(ClientRequest& request, ModelRegistry::Entry& entry) {
  if (request.op == protocol::Op::kLoad) return FinishLoad(request, entry);
  on_ready(request, entry);
}

void ModelService::FinishLoad(ClientRequest& request, ModelRegistry::Entry& entry) {
  if (std::get<protocol::LoadArgs>(request.args).pin) entry.pinned = true;
  core_.registry.Release(request.key);
  protocol::LoadDone done;
  done.model = StatusOf(core_, entry, Clock::now());
  done.was_loaded = request.was_loaded;
  done.precision = PrecisionName(request.precision);
  done.spine_cached = entry.loaded->model->spine_cached(request.precision);
  done.load_ms = static_cast<uint64_t>(std::llround(request.load_ms));
  done.warnings = entry.loaded->warnings;
  if (Contradicts(std::get<protocol::LoadArgs>(request.args).stream, *entry.loaded->model)) {
    done.warnings.push_back("it is in use, and stays as it was loaded: " +
                            std::string(done.model.stream ? "its experts are streamed with " +
                                                                BytesText(done.model.stream->budget)
                                                          : "all its experts are in memory"));
  }
  if (!entry.loaded->tokenizer) done.warnings.push_back(entry.loaded->tokenizer_error.ToString());
  core_.clients.Finish(request, std::move(done));
}

void ModelService::HandleUnload(const std::string& peer, uint64_t id,
                                const protocol::UnloadArgs& args) {
  if (args.model.empty()) {
    return core_.clients.Answer(
        peer, id, protocol::Op::kUnload,
        protocol::UnloadDone{core_.registry.UnloadIdle(ModelRegistry::Pinned::kGo)});
  }
  auto path = ResolveModel(args.model, core_.config, core_.folders);
  // A file that was removed can still be unloaded by its path.
  const std::string wanted = path ? *path : args.model;
  std::vector<ModelRef> refs;
  std::vector<std::string> holders;
  for (const auto& [key, entry] : core_.registry.entries()) {
    if (entry->ref.path != wanted || entry->superseded) continue;
    if (entry->idle()) refs.push_back(entry->ref);
    for (std::string& name : HoldersOf(core_, *entry).names) holders.push_back(std::move(name));
  }
  if (!holders.empty()) {
    return core_.clients.Answer(peer, id, protocol::Op::kUnload, InUse(wanted, holders));
  }
  if (refs.empty()) {
    return core_.clients.Answer(peer, id, protocol::Op::kUnload,
                                protocol::Error{protocol::ErrorCode::kModelNotFound,
                                                wanted + " is not loaded",
                                                "mk ps shows what is",
                                                {}});
  }
  uint64_t unloaded = 0;
  for (const ModelRef& ref : refs) {
    if (core_.registry.Unload(ref)) ++unloaded;
  }
  core_.clients.Answer(peer, id, protocol::Op::kUnload, protocol::UnloadDone{unloaded});
}

Precision ModelService::PrecisionOf(const std::string& name) const {
  return ParsePrecision(name).value_or(core_.config.precision);
}

void ModelService::Acquire(ClientRequest& request, const protocol::ModelSelector& selector,
                           std::optional<std::chrono::milliseconds> keep_alive) {
  auto ref = ResolveSelector(core_, selector);
  if (!ref) return core_.clients.Finish(request, ref.error());
  request.model_path = ref->path;
  auto entry = core_.registry.Acquire(*ref, request.precision, request.key, keep_alive,
                                      StreamWishOf(request));
  if (!entry) return core_.clients.Finish(request, ToModelError(entry.error()));
  request.phase = RequestPhase::kLoading;
  // As the registry found it: a small preparation may be over by now, and tells so by its own
  // event.
  const bool there = (*entry)->users.count(request.key) > 0;
  request.was_loaded = there && !request.load_retried;
  if (there) Ready(request, **entry);
}

void ModelService::OnProgress(const LoadProgress& progress) {
  core_.registry.OnProgress(progress);
  const ModelRegistry::Entry* entry = core_.registry.Find(progress.model);
  if (entry == nullptr) return;
  protocol::Progress told{"prepare", static_cast<uint64_t>(progress.fraction * 100), 100,
                          "percent"};
  if (!entry->loaded) {
    const auto bytes = static_cast<double>(entry->identity.size) * progress.fraction;
    told = {"load", static_cast<uint64_t>(bytes), entry->identity.size, "bytes"};
  }
  const auto now = Clock::now();
  for (const auto& [precision, preparation] : entry->preparing) {
    // Everybody waits for a first load; for a further precision only those who asked for it.
    if (entry->loaded && precision != progress.precision) continue;
    for (const uint64_t key : preparation.waiting) {
      if (ClientRequest* request = core_.clients.Find(key)) {
        core_.clients.SendProgress(*request, told, now);
      } else {
        on_other_progress(key, told);
      }
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
  if (!first_time) return false;
  // Where the budget had the room and the system had not, all that can go may help.
  const bool room = outcome.refused_bytes > 0 ? core_.registry.MakeRoom(outcome.refused_bytes)
                                              : core_.registry.UnloadIdle() > 0;
  if (!room) return false;
  for (const uint64_t key : outcome.requests) {
    ClientRequest* request = core_.clients.Find(key);
    if (request == nullptr) {
      on_other_loaded(key, nullptr, &*outcome.error);
      continue;
    }
    request->load_retried = true;
    Acquire(*request, SelectorOf(*request), KeepAliveOf(*request));
  }
  return true;
}

void ModelService::OnFinished(LoadFinished finished) {
  const ModelRegistry::Outcome outcome = core_.registry.OnFinished(std::move(finished));
  if (outcome.error && RetryWithMoreRoom(outcome)) return;
  const auto now = Clock::now();
  for (const uint64_t key : outcome.requests) {
    ClientRequest* request = core_.clients.Find(key);
    if (request == nullptr) {
      on_other_loaded(key, outcome.entry, outcome.error ? &*outcome.error : nullptr);
      continue;
    }
    request->load_ms = MillisecondsSince(request->arrived, now);
    if (outcome.error) {
      core_.clients.Finish(*request, outcome.refused_bytes > 0
                                         ? OutOfMemory(request->model_path, outcome.refused_bytes,
                                                       core_.ledger, core_.registry)
                                         : ToModelError(*outcome.error));
    } else {
      Ready(*request, *outcome.entry);
    }
  }
}

}  // namespace mk::daemon
