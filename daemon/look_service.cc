#include "daemon/look_service.h"

#include <utility>

#include "daemon/errors.h"
#include "daemon/expert_counter.h"

namespace mk::daemon {

protocol::Result<protocol::Body> LookService::ExpertStats(const protocol::ExpertStatsArgs& args) {
  std::string path;
  if (!args.model.empty()) {
    auto found = ResolveModel(args.model, core_.config, core_.folders);
    if (!found) return protocol::Fail(ToModelError(found.error()));
    path = std::move(*found);
  }
  protocol::ExpertStatsDone done;
  done.counting = core_.config.count_experts;
  for (const auto& [id, entry] : core_.registry.entries()) {
    if (!entry->loaded || !entry->loaded->experts) continue;
    if (!path.empty() && entry->ref.path != path) continue;
    done.models.push_back({entry->ref.path, entry->loaded->model->info().fingerprint,
                           entry->loaded->experts->Tally(args.reset)});
  }
  return done;
}

void LookService::HandleExpertStats(const std::string& peer, uint64_t id,
                                    const protocol::ExpertStatsArgs& args) {
  auto done = ExpertStats(args);
  core_.clients.Answer(peer, id, protocol::Op::kExpertStats,
                       done ? std::move(*done) : protocol::Body(std::move(done.error())));
}

}  // namespace mk::daemon
