// `mk absorb`: a text of any length becomes a memory pack, as a job.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "client/commands.h"
#include "client/detach.h"
#include "client/generation_options.h"
#include "client/job.h"
#include "client/job_text.h"
#include "client/json_format.h"
#include "client/report.h"
#include "client/unique_fd.h"
#include "protocol/home.h"
#include "protocol/log_path.h"
#include "protocol/socket_path.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

struct AbsorbSettings {
  AccessOptions access;
  protocol::AbsorbArgs args;
  bool json = false;
  bool detach = false;
};

protocol::Error NotKept(const std::string& path) {
  return {ErrorCode::kIoError,
          "cannot keep standard input as " + path + ": " + std::strerror(errno),
          "make room there, or give a file",
          {}};
}

// Everything that comes through standard input.
Status CopyInput(int to, const std::string& path) {
  std::array<char, 65536> buffer;
  while (true) {
    const ssize_t got = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    if (got == 0) return {};
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return Fail(ErrorCode::kIoError,
                  std::string("cannot read standard input: ") + std::strerror(errno),
                  "give a file");
    }
    for (ssize_t at = 0; at < got;) {
      const ssize_t put = ::write(to, buffer.data() + at, static_cast<size_t>(got - at));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return Fail(NotKept(path));
      at += put;
    }
  }
}

// The daemon reads files, and may read this one again after it was interrupted: it removes it in
// the end.
Result<std::string> KeepInput(const AccessOptions& access) {
  auto paths = protocol::FindSocketPaths(access.socket);
  if (!paths) return Fail(std::move(paths.error()));
  auto jobs = protocol::JobFolderOf(paths->socket);
  if (!jobs) return jobs;
  const std::string folder = *jobs + "/absorb";
  if (Status made = protocol::MakeFolders(folder); !made) return Fail(std::move(made.error()));
  std::string path = folder + "/stdin-XXXXXX";
  const UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) return Fail(NotKept(path));
  Status copied = CopyInput(fd.get(), path);
  if (copied && ::fsync(fd.get()) != 0) copied = Fail(NotKept(path));
  if (copied) return path;
  ::unlink(path.c_str());
  return Fail(std::move(copied.error()));
}

std::optional<int> ParseAbsorb(const Command& command, int argc, char** argv,
                               AbsorbSettings& settings) {
  protocol::AbsorbArgs& args = settings.args;
  protocol::RunArgs run;  // what it has in common with runs
  GenerationOptions reading;
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("FILE", args.text, "Text to read; - is standard input")->required();
  reading.AddMemory(line, run);
  reading.AddSave(line, run);
  line.AddModel(run.model);
  reading.AddChunks(line, run);
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  AddDetach(line, settings.detach);
  line.AddAccess(settings.access, true);
  if (auto code = line.Parse(argc, argv)) return code;
  if (Status taken = reading.Take(run); !taken) return ReportError(taken.error());
  if (run.save.empty()) {
    return ReportUsage("there is no pack to make", "name one with --save PACK");
  }
  args.model = run.model;
  args.memory = run.memory;
  args.save = run.save;
  args.save_format = run.save_format;
  args.precision = run.precision;
  args.chunked_prefill = run.chunked_prefill;
  return std::nullopt;
}

}  // namespace

int AbsorbCommand(const Command& command, int argc, char** argv) {
  AbsorbSettings settings;
  if (auto code = ParseAbsorb(command, argc, argv, settings)) return *code;
  protocol::AbsorbArgs& args = settings.args;
  args.spooled = args.text == "-";
  if (args.spooled) {
    auto kept = KeepInput(settings.access);
    if (!kept) return ReportError(kept.error(), settings.json);
    args.text = std::move(*kept);
  }
  args.text = AbsolutePath(args.text);
  if (settings.detach) {
    protocol::JobSpec spec;
    spec.absorb = args;
    return StartDetached(settings.access, {spec}, settings.json);
  }
  auto session = OpenSession(settings.access);
  if (!session) {
    if (args.spooled) ::unlink(args.text.c_str());
    return ReportError(session.error(), settings.json);
  }
  Output output(STDOUT_FILENO);
  auto done = RunJobFor<protocol::AbsorbDone>(*session, args, output, !settings.json);
  if (!done) return ReportError(done.error(), settings.json);
  output.Write(settings.json ? JsonLine(ToJson(*done)) : AbsorbText(*done));
  for (const std::string& warning : done->warnings) {
    std::fputs(("mk: warning: " + warning + "\n").c_str(), stderr);
  }
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
