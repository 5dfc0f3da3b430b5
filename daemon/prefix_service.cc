#include "daemon/prefix_service.h"

#include <algorithm>
#include <map>
#include <utility>

#include "daemon/errors.h"

namespace mk::daemon {
namespace {

// Which models a request means.
class Selection {
 public:
  static protocol::Result<Selection> Of(const Core& core, const std::string& model) {
    if (model.empty()) return Selection({}, {});
    if (auto path = ResolveModel(model, core.config, core.folders)) return Selection(*path, {});
    // A model that is gone may have left something.
    if (model.front() == '/') return Selection(model, {});
    constexpr size_t kDigits = 4;
    if (model.size() >= kDigits &&
        model.find_first_not_of("0123456789abcdef") == std::string::npos) {
      return Selection({}, model);
    }
    return protocol::Fail(protocol::ErrorCode::kModelNotFound,
                          "no model is called \"" + model + "\"",
                          "mk pck info lists those that have states");
  }

  bool Has(const std::string& path, const std::string& fingerprint) const {
    if (!path_.empty()) return path == path_;
    // Folders are named by the first digits alone.
    const size_t common = std::min(digits_.size(), fingerprint.size());
    return fingerprint.compare(0, common, digits_, 0, common) == 0;
  }

 private:
  Selection(std::string path, std::string digits)
      : path_(std::move(path)), digits_(std::move(digits)) {}

  std::string path_;
  std::string digits_;
};

protocol::PrefixStatus StatusOf(const PrefixKind& kind, size_t tokens, bool logits, double value) {
  protocol::PrefixStatus status;
  status.tokens = tokens;
  status.precision = PrecisionName(kind.precision);
  status.chunked_prefill = kind.chunked_prefill;
  status.logits = logits;
  status.value = value;
  return status;
}

// One model's states in memory and its folder become one list.
class ModelList {
 public:
  void Add(const PrefixCache::ShelfList& shelf) {
    model_.model = shelf.model;
    model_.fingerprint = shelf.fingerprint;
    model_.loaded = true;
    model_.memory_states += shelf.states.size();
    for (const PrefixShelf::Listed& state : shelf.states) {
      protocol::PrefixStatus& status =
          model_.states.emplace_back(StatusOf(state.kind, state.tokens, state.logits, state.value));
      status.memory_bytes = state.bytes;
      status.own_bytes = state.own_bytes;
      if (state.file) known_[state.file.get()] = model_.states.size() - 1;
    }
  }

  void Add(const std::string& name, const PrefixDisk::Folder& folder) {
    if (model_.fingerprint.empty()) model_.fingerprint = name;
    if (model_.model.empty()) model_.model = folder.model;
    model_.disk_files += folder.files.size();
    for (const PrefixDisk::Listed& file : folder.files) {
      model_.disk_bytes += file.bytes;
      if (file.bad) ++model_.refused_files;
      const auto known = known_.find(file.file.get());
      if (known != known_.end()) {
        model_.states[known->second].disk_bytes = file.bytes;
      } else if (file.head) {
        const PrefixHead& head = *file.head;
        model_.states.push_back(StatusOf(head.kind, head.tokens.size(), head.logits, file.value));
        model_.states.back().disk_bytes = file.bytes;
      }
    }
  }

  protocol::PrefixModel Take() {
    std::stable_sort(model_.states.begin(), model_.states.end(),
                     [](const auto& a, const auto& b) { return a.tokens > b.tokens; });
    return std::move(model_);
  }

 private:
  protocol::PrefixModel model_;
  std::map<const PrefixDisk::File*, size_t> known_;  // files of states that memory has, too
};

std::map<std::string, uint64_t> Totals(const PrefixCache& prefixes) {
  const PrefixCache::Counts memory = prefixes.counts();
  const PrefixDisk::Counts disk = prefixes.disk()->counts();
  return {{"memory_states", memory.states},
          {"memory_bytes", memory.bytes},
          {"memory_limit", memory.limit},
          {"lookups", memory.lookups},
          {"hits", memory.hits},
          {"disk_hits", memory.disk_hits},
          {"evictions", memory.evicted},
          {"disk_files", disk.files},
          {"disk_bytes", disk.bytes},
          {"disk_limit", disk.limit},
          {"disk_reads", disk.loads},
          {"disk_writes", disk.writes},
          {"disk_evictions", disk.evicted},
          {"disk_refused", disk.refused},
          {"disk_unwritten", disk.unwritten},
          {"disk_waiting", disk.waiting}};
}

}  // namespace

void PrefixService::HandleInfo(const std::string& peer, uint64_t id,
                               const protocol::PckInfoArgs& args) {
  const auto answer = [&](protocol::Body body) {
    core_.clients.Answer(peer, id, protocol::Op::kPckInfo, std::move(body));
  };
  auto selection = Selection::Of(core_, args.model);
  if (!selection) return answer(std::move(selection.error()));
  const PrefixCache& prefixes = core_.prefixes;
  std::map<std::string, ModelList> models;  // by folder
  for (const auto& shelf : prefixes.List()) {
    if (!selection->Has(shelf.model, shelf.fingerprint)) continue;
    models[PrefixFolderOf(shelf.fingerprint)].Add(shelf);
  }
  for (const auto& [name, folder] : prefixes.disk()->List()) {
    const auto known = models.find(name);
    if (known == models.end()) {
      if (folder.files.empty() || !selection->Has(folder.model, name)) continue;
    }
    models[name].Add(name, folder);
  }
  protocol::PckInfoDone done;
  for (auto& [name, model] : models) done.models.push_back(model.Take());
  done.folder = prefixes.disk()->directory();
  done.trouble = prefixes.disk()->trouble();
  done.totals = Totals(prefixes);
  answer(std::move(done));
}

void PrefixService::HandleClean(ClientRequest& request) {
  auto selection = Selection::Of(core_, std::get<protocol::PckCleanArgs>(request.args).model);
  if (!selection) return core_.clients.Finish(request, std::move(selection.error()));
  const protocol::Error busy{protocol::ErrorCode::kBusy, "too many requests wait", "try again", {}};
  auto task = [key = request.key, of = *selection, busy, &prefixes = core_.prefixes,
               &events = core_.events] {
    const auto forgotten =
        prefixes.Forget([&](const ModelInfo& info) { return of.Has(info.path, info.fingerprint); });
    const bool posted = prefixes.disk()->PostWrite([key, of, forgotten, &prefixes, &events] {
      const auto removed =
          prefixes.disk()->Clean([&](const std::string& folder, const std::string& model) {
            return of.Has(model, folder);
          });
      events.Push(WorkDone{key, protocol::PckCleanDone{forgotten.states, forgotten.bytes,
                                                       removed.files, removed.bytes}});
    });
    if (!posted) events.Push(WorkDone{key, protocol::Fail(busy)});
  };
  if (!core_.aux.Post(std::move(task))) core_.clients.Finish(request, busy);
}

}  // namespace mk::daemon
