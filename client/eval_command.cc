// `mk eval`: a scorecard of each model, as jobs.

#include <unistd.h>

#include <cstdio>

#include "client/commands.h"
#include "client/detach.h"
#include "client/eval_options.h"
#include "client/eval_text.h"
#include "client/job.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Result;

struct EvalSettings {
  AccessOptions access;
  std::vector<protocol::EvalArgs> models;
  bool json = false;
  bool detach = false;
};

std::optional<int> ParseEval(const Command& command, int argc, char** argv,
                             EvalSettings& settings) {
  std::vector<std::string> models;
  protocol::EvalArgs like;
  EvalOptions options;
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("MODEL", models, "Paths, aliases or names (default: the default model)")
      ->type_name("");
  options.Add(line);
  bool fallback = false;
  app.add_flag("--stream-fallback", fallback,
               "Take shadows for experts that are not in memory: how far they degrade the model");
  line.AddPrecision(like.precision, "Arithmetic");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  AddDetach(line, settings.detach);
  line.AddAccess(settings.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  like.items = options.Take();
  like.items.stream_fallback = fallback;
  if (models.empty()) models.emplace_back();
  for (const std::string& model : models) {
    settings.models.push_back(like);
    settings.models.back().model.model = model;
    MakeAbsolute(settings.models.back().model);
  }
  return std::nullopt;
}

Result<std::vector<protocol::EvalDone>> EvaluateAll(const EvalSettings& settings, Output& output) {
  auto session = OpenSession(settings.access);
  if (!session) return Fail(std::move(session.error()));
  std::vector<protocol::EvalDone> models;
  for (const protocol::EvalArgs& args : settings.models) {
    auto done = RunJobFor<protocol::EvalDone>(*session, args, output, !settings.json);
    if (!done) return Fail(std::move(done.error()));
    models.push_back(std::move(*done));
  }
  return models;
}

}  // namespace

int EvalCommand(const Command& command, int argc, char** argv) {
  EvalSettings settings;
  if (auto code = ParseEval(command, argc, argv, settings)) return *code;
  if (settings.detach) {
    std::vector<protocol::JobSpec> specs;
    for (const protocol::EvalArgs& args : settings.models) specs.emplace_back().eval = args;
    return StartDetached(settings.access, std::move(specs), settings.json);
  }
  Output output(STDOUT_FILENO);
  auto models = EvaluateAll(settings, output);
  if (!models) return ReportError(models.error(), settings.json);
  output.Write(settings.json ? JsonLine(EvalJson(*models)) : EvalText(*models));
  int code = protocol::kExitDone;
  for (const protocol::EvalDone& done : *models) {
    if (done.model.degraded) code = protocol::kExitDegraded;
    for (const std::string& warning : done.warnings) {
      std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
    }
  }
  return FinishOutput(output, code);
}

}  // namespace mk::client
