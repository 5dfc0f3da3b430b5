// `mk shadow`: a small copy of all experts of a model, as a job; and what a file of them says.

#include <unistd.h>

#include <string>
#include <vector>

#include "client/commands.h"
#include "client/daemon_program.h"
#include "client/detach.h"
#include "client/job.h"
#include "client/job_text.h"
#include "client/json_format.h"
#include "client/report.h"

namespace mk::client {
namespace {

struct ShadowSettings {
  AccessOptions access;
  protocol::ShadowArgs args;
  std::string info;
  bool json = false;
  bool detach = false;
};

std::optional<int> ParseShadow(const Command& command, int argc, char** argv,
                               ShadowSettings& settings) {
  protocol::ShadowArgs& args = settings.args;
  std::string model;
  std::string bits;
  std::string format = "2";
  uint64_t threads = 0;
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("MODEL", model, "Path, alias or name (default: the default model)");
  CLI::Option* out = app.add_option("-o,--out", args.out, "File to make (default MODEL.shadows)")
                         ->type_name("FILE");
  CLI::Option* size =
      app.add_option("--bits", bits, "Bits per weight (default 1)")->check(OneOf({"0.5", "1"}));
  CLI::Option* kind =
      app.add_option("--format", format, "2, or 1 for the reference engine: 0.5 bits (default 2)")
          ->check(OneOf({"1", "2"}));
  line.AddNumber("--threads", threads, "Threads (default: the daemon's)", 1, 1024);
  app.add_option("--info", settings.info, "Tell what is in this file, make none")
      ->type_name("FILE")
      ->excludes(out)
      ->excludes(size)
      ->excludes(kind);
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  AddDetach(line, settings.detach);
  line.AddAccess(settings.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (format == "1" && bits == "1") {
    return ReportUsage("files of format 1 have 0.5 bits per weight", "leave out --bits");
  }
  if (!settings.info.empty() && !model.empty()) {
    return ReportUsage("a model and --info are both given", "leave out one of them");
  }
  args.model = ModelArgument(model);
  if (!args.out.empty()) args.out = AbsolutePath(args.out);
  args.version = format == "1" ? 1 : 2;
  args.stages = format == "1" || bits == "0.5" ? 1 : 2;
  args.threads = static_cast<uint32_t>(threads);
  return std::nullopt;
}

}  // namespace

int ShadowCommand(const Command& command, int argc, char** argv) {
  ShadowSettings settings;
  if (auto code = ParseShadow(command, argc, argv, settings)) return *code;
  if (!settings.info.empty()) {
    std::vector<std::string> arguments = {"shadow"};
    if (settings.json) arguments.emplace_back("--json");
    arguments.insert(arguments.end(), {"--", settings.info});
    return BecomeDaemonTool(std::move(arguments));
  }
  if (settings.detach) {
    protocol::JobSpec spec;
    spec.shadow = settings.args;
    return StartDetached(settings.access, {spec}, settings.json);
  }
  auto session = OpenSession(settings.access);
  if (!session) return ReportError(session.error(), settings.json);
  Output output(STDOUT_FILENO);
  auto done = RunJobFor<protocol::ShadowDone>(*session, settings.args, output, !settings.json);
  if (!done) return ReportError(done.error(), settings.json);
  output.Write(settings.json ? JsonLine(ToJson(*done)) : ShadowText(*done));
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
