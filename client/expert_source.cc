#include "client/expert_source.h"

#include "client/report.h"
#include "client/route_files.h"
#include "client/session.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Status;

std::string TokensText(uint64_t tokens) {
  return std::to_string(tokens) + (tokens == 1 ? " token" : " tokens");
}

}  // namespace

void ExpertSource::Add(CommandLine& line) {
  run_.Add(line, "Text to read; - or nothing: standard input");
  line.app().add_flag("--daemon", daemon_,
                      "Instead of a run: all that the daemon has counted (count_experts)");
  line.app().add_flag("--reset", reset_, "With --daemon: count anew from now on");
  line.AddAccess(access_, true);
}

Status ExpertSource::Take(CommandLine& line) {
  if (reset_ && !daemon_) return Fail(UsageError("--reset goes with --daemon", "add --daemon"));
  if (!daemon_) {
    run_.args().want_experts = true;
    return run_.Take(line);
  }
  if (run_.given() || line.app().get_option("PROMPT")->count() > 0) {
    return Fail(UsageError("--daemon excludes a prompt", "leave out one of them"));
  }
  MakeAbsolute(run_.args().model);
  return {};
}

protocol::Result<CountedExperts> ExpertSource::OfDaemon() const {
  auto session = OpenSession(access_);
  if (!session) return Fail(std::move(session.error()));
  protocol::ExpertStatsArgs args;
  args.model = run_.args().model.model;
  args.reset = reset_;
  auto done = AskFor<protocol::ExpertStatsDone>(*session, std::move(args));
  if (!done) return Fail(std::move(done.error()));
  std::erase_if(done->models, [](const auto& model) { return model.tally.counts.empty(); });
  if (done->models.empty()) {
    return Fail(protocol::ErrorCode::kBadRequest, "the daemon has counted no experts",
                done->counting
                    ? "run something first, on a model that is loaded since then"
                    : "mk config set count_experts true, then mk restart, then run something");
  }
  if (done->models.size() > 1) {
    return Fail(protocol::ErrorCode::kBadRequest,
                "the daemon has counted for " + std::to_string(done->models.size()) + " models",
                "name one with --model");
  }
  protocol::ExpertStatsModel& model = done->models.front();
  if (auto good = CheckTally(model.tally); !good) return Fail(std::move(good.error()));
  const std::string about = TokensText(model.tally.tokens) + " since the daemon counts";
  return CountedExperts{model.model, model.fingerprint, about, std::move(model.tally)};
}

protocol::Result<CountedExperts> ExpertSource::Count(Output& output, bool show_progress) const {
  if (daemon_) return OfDaemon();
  auto done = run_.Run(access_, output, show_progress);
  if (!done) return Fail(std::move(done.error()));
  if (!done->experts || done->experts->counts.empty()) {
    return Fail(protocol::ErrorCode::kUnsupported, "no router has picked an expert",
                "this model has none");
  }
  if (auto good = CheckTally(*done->experts); !good) return Fail(std::move(good.error()));
  const std::string about = TokensText(done->usage.prompt_tokens) + " read, " +
                            TokensText(done->usage.completion_tokens) + " generated";
  return CountedExperts{done->trust.model_path, done->trust.fingerprint, about,
                        std::move(*done->experts)};
}

}  // namespace mk::client
