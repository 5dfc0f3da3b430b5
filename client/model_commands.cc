// `mk load`, `mk unload`, `mk verify`, `mk build`

#include <unistd.h>

#include <array>
#include <cstdio>

#include "client/commands.h"
#include "client/detach.h"
#include "client/job.h"
#include "client/job_text.h"
#include "client/json_format.h"
#include "client/progress.h"
#include "client/report.h"

namespace mk::client {
namespace {

// Prints the answer, or the error in the same form.
template <typename Done, typename Render>
int Answer(const protocol::Result<Done>& done, bool json, Output& output, const Render& render) {
  if (json) output.Write(JsonLine(done ? ToJson(*done) : ErrorToJson(done.error())));
  if (done && !json) output.Write(render(*done));
  const int written = FinishOutput(output, protocol::kExitDone);
  return done ? written : ReportError(done.error());
}

void PrintWarnings(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) {
    std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
  }
}

std::string LoadText(const protocol::LoadDone& done) {
  const std::string what = done.was_loaded ? "was loaded already: " : "loaded: ";
  return what + done.model.path + " (" + done.model.architecture + ", " +
         BytesText(done.model.file_bytes) + ", " + done.precision + ", " +
         std::to_string(done.load_ms) + " ms" +
         (done.spine_cached ? ", from the spine cache" : "") + ")\n";
}

protocol::Status TakeKeepAlive(const std::string& time, protocol::LoadArgs& args) {
  if (time.empty()) return {};
  if (time == "forever") {
    args.keep_alive_ms = -1;
    return {};
  }
  auto duration = ParseDurationMs(time);
  if (!duration) return protocol::Fail(std::move(duration.error()));
  args.keep_alive_ms = static_cast<int64_t>(*duration);
  return {};
}

struct BuildNumbers {
  uint64_t seed = 0;
  uint64_t threads = 0;
};

void AddBuildOptions(CommandLine& line, protocol::BuildArgs& args, BuildNumbers& numbers) {
  CLI::App& app = line.app();
  app.add_option("--arch", args.arch, "Architecture (default k3)")->type_name("ARCH:{k3,dsv4}");
  app.add_option("--preset", args.preset, "Size (default nano)")
      ->type_name("PRESET:{tiny,nano,micro,k3-wide,k3-cache,dsv4-wide}");
  app.add_option("-o,--out", args.out, "File to make (default mk-ARCH-PRESET.bin here)")
      ->type_name("FILE");
  line.AddNumber("--seed", numbers.seed, "Seed of the values (default 0)");
  line.AddRepeated("--set", args.set, "Another dimension or gain; may be given several times")
      ->type_name("KEY=VALUE");
  app.add_option("--expert-align", args.expert_align, "Alignment of expert matrices in bytes")
      ->check(OneOf({"auto", "64", "4096"}));
  line.AddNumber("--threads", numbers.threads, "Threads (default: the daemon's)", 1, 1024);
  app.add_flag("--dry-run", args.dry_run, "Tell the sizes, write nothing");
  app.add_flag("--force", args.force, "Replace a file that exists");
}

}  // namespace

int LoadCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  protocol::LoadArgs args;
  std::string model;
  std::string keep_alive;
  bool json = false;
  CommandLine line(command);
  line.app().add_option("MODEL", model, "Path, alias or name (default: the default model)");
  line.app().add_flag("--keep", args.pin,
                      "Keep it until `mk unload`, whatever the time and whoever needs the room");
  line.app()
      .add_option("--keep-alive", keep_alive,
                  "Unload it so long after its last use: 10m, 2h, forever (default: the daemon's "
                  "setting)")
      ->type_name("TIME")
      ->excludes("--keep");
  line.AddPrecision(args.precision, "Arithmetic to be ready for");
  line.app().add_flag("--json", json, "One JSON object instead of text");
  line.AddModel(args.model);
  line.AddStream(args.stream);
  line.AddAccess(access, true);
  if (auto code = line.Parse(argc, argv)) return *code;
  if (!model.empty() && !args.model.model.empty()) {
    return ReportUsage("the model is given twice, as an argument and with --model",
                       "leave out one of them");
  }
  if (!model.empty()) args.model.model = model;
  MakeAbsolute(args.model);
  if (auto taken = TakeKeepAlive(keep_alive, args); !taken) return ReportError(taken.error());
  auto session = OpenSession(access);
  if (!session) return ReportError(session.error());
  Output output(STDOUT_FILENO);
  auto done = RunJobFor<protocol::LoadDone>(*session, std::move(args), output, !json);
  if (done) PrintWarnings(done->warnings);
  return Answer(done, json, output, LoadText);
}

int UnloadCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  std::string model;
  bool all = false;
  bool json = false;
  CommandLine line(command);
  line.app().add_option("MODEL", model, "Path, alias or name");
  line.app().add_flag("--all", all, "Every model that nobody uses, pinned ones too");
  line.app().add_flag("--json", json, "One JSON object instead of text");
  line.AddAccess(access, false);
  if (auto code = line.Parse(argc, argv)) return *code;
  if (model.empty() != all) {
    return ReportUsage("give a model or --all", "`mk ps` shows the loaded ones");
  }
  auto session = OpenSession(access);
  if (!session) return ReportError(session.error());
  Output output(STDOUT_FILENO);
  auto done = AskFor<protocol::UnloadDone>(*session, protocol::UnloadArgs{ModelArgument(model)});
  return Answer(done, json, output, [](const protocol::UnloadDone& unloaded) {
    return "unloaded " + std::to_string(unloaded.unloaded) +
           (unloaded.unloaded == 1 ? " model\n" : " models\n");
  });
}

int VerifyCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  std::string model;
  bool json = false;
  bool detach = false;
  CommandLine line(command);
  line.app().add_option("MODEL", model, "Path, alias or name (default: the default model)");
  line.app().add_flag("--json", json, "One JSON object instead of text");
  AddDetach(line, detach);
  line.AddAccess(access, true);
  if (auto code = line.Parse(argc, argv)) return *code;
  const protocol::VerifyArgs args{ModelArgument(model)};
  if (detach) return StartDetached(access, {protocol::JobSpec{args, {}, {}}}, json);
  auto session = OpenSession(access);
  if (!session) return ReportError(session.error());
  Output output(STDOUT_FILENO);
  auto done = RunJobFor<protocol::VerifyDone>(*session, args, output, !json);
  if (done) PrintWarnings(done->warnings);
  const int code = Answer(done, json, output, VerifyText);
  if (code != protocol::kExitDone || done->ok) return code;
  return ReportError(NotSound(*done));
}

int BuildCommand(const Command& command, int argc, char** argv) {
  AccessOptions access;
  protocol::BuildArgs args;
  BuildNumbers numbers;
  bool json = false;
  bool detach = false;
  CommandLine line(command);
  AddBuildOptions(line, args, numbers);
  line.app().add_flag("--json", json, "One JSON object instead of text");
  AddDetach(line, detach);
  line.AddAccess(access, true);
  if (auto code = line.Parse(argc, argv)) return *code;
  args.seed = numbers.seed;
  args.threads = static_cast<uint32_t>(numbers.threads);
  if (args.out.empty()) args.out = "mk-" + args.arch + "-" + args.preset + ".bin";
  args.out = AbsolutePath(args.out);
  if (detach) return StartDetached(access, {protocol::JobSpec{{}, args, {}}}, json);
  auto session = OpenSession(access);
  if (!session) return ReportError(session.error());
  Output output(STDOUT_FILENO);
  auto done = RunJobFor<protocol::BuildDone>(*session, std::move(args), output, !json);
  return Answer(done, json, output, BuildText);
}

}  // namespace mk::client
