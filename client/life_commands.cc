// `mk stop`, `mk restart`

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "cli/folders.h"
#include "client/autostart.h"
#include "client/commands.h"
#include "client/config_view.h"
#include "client/report.h"
#include "client/unique_fd.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

// Beyond the grace that running requests get.
constexpr milliseconds kLeaveTimeout{30'000};

struct Stopped {
  bool was_running = false;
  uint64_t pid = 0;
  bool socket_activated = false;
};

// Waits for the end of a process that need not be our child.
bool WaitForExit(uint64_t pid, Deadline deadline) {
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (process) {
    pollfd ended = {process.get(), POLLIN, 0};
    while (true) {
      const int count = ::poll(&ended, 1, PollTimeout(deadline));
      if (count > 0) return true;
      if (count == 0) return false;
    }
  }
  constexpr int kPollMs = 10;
  while (::kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM) {
    if (Clock::now() >= deadline) return false;
    ::poll(nullptr, 0, kPollMs);
  }
  return true;
}

// The version that a daemon which refused ours speaks.
uint32_t VersionOf(const protocol::Error& refusal) {
  const auto found = refusal.details.find("protocol_max");
  if (found == refusal.details.end()) return protocol::kProtocolMax;
  const auto* version = std::get_if<int64_t>(&found->second);
  return version != nullptr ? static_cast<uint32_t>(*version) : protocol::kProtocolMax;
}

Result<protocol::StopDone> AskToStop(Session& session, std::optional<uint64_t> grace_ms) {
  uint32_t version = protocol::kProtocolMax;
  auto hello = session.Hello(After(kControlTimeout));
  if (!hello && hello.error().code != ErrorCode::kUnsupportedVersion) {
    return Fail(std::move(hello.error()));
  }
  if (!hello) version = VersionOf(hello.error());
  auto sent = session.Send(protocol::StopArgs{grace_ms}, version);
  if (!sent) return Fail(std::move(sent.error()));
  const Deadline deadline = After(kControlTimeout);
  while (true) {
    auto reply = session.Wait(deadline);
    if (!reply) return Fail(std::move(reply.error()));
    if (!*reply) {
      if (Clock::now() < deadline) continue;
      return Fail(ErrorCode::kUnreachable, "the daemon does not answer",
                  "it hangs; end it with SIGKILL");
    }
    if (auto* done = std::get_if<protocol::StopDone>(&(*reply)->body)) return std::move(*done);
    if (auto* error = std::get_if<protocol::Error>(&(*reply)->body)) return Fail(std::move(*error));
  }
}

Result<Stopped> StopDaemon(const protocol::SocketPaths& paths, std::optional<uint64_t> grace_ms) {
  auto session = ConnectSession(paths);
  if (!session) {
    if (session.error().absence == Absence::kNobody) return Stopped{};
    return Fail(std::move(session.error().error));
  }
  auto done = AskToStop(*session, grace_ms);
  if (!done) return Fail(std::move(done.error()));
  const Deadline deadline = After(kLeaveTimeout + milliseconds(grace_ms.value_or(0)));
  if (!WaitForExit(done->pid, deadline)) {
    return Fail(
        ErrorCode::kTimeout,
        "the daemon (pid " + std::to_string(done->pid) + ") was told to stop but still runs",
        "its log may say why; end it with SIGKILL");
  }
  return Stopped{true, done->pid, done->socket_activated};
}

struct StopOptions {
  protocol::SocketPaths paths;
  std::optional<uint64_t> grace_ms;
};

std::optional<int> ParseStop(const Command& command, int argc, char** argv, StopOptions& options) {
  AccessOptions access;
  std::string grace;
  CommandLine line(command);
  line.app()
      .add_option("--grace", grace, "Let running requests finish for so long: 30s, 5m, 0")
      ->type_name("TIME");
  line.AddAccess(access, false);
  if (auto code = line.Parse(argc, argv)) return code;
  if (!grace.empty()) {
    auto duration = ParseDurationMs(grace);
    if (!duration) return ReportError(duration.error());
    options.grace_ms = *duration;
  }
  auto paths = protocol::FindSocketPaths(access.socket);
  if (!paths) return ReportError(paths.error());
  options.paths = std::move(*paths);
  return std::nullopt;
}

}  // namespace

int StopCommand(const Command& command, int argc, char** argv) {
  StopOptions options;
  if (auto code = ParseStop(command, argc, argv, options)) return *code;
  auto stopped = StopDaemon(options.paths, options.grace_ms);
  if (!stopped) return ReportError(stopped.error());
  Output output(STDOUT_FILENO);
  if (!stopped->was_running) {
    output.Write("no daemon runs\n");
  } else {
    output.Write("stopped microkimid, pid " + std::to_string(stopped->pid) + "\n");
    if (stopped->socket_activated) {
      output.Write(
          "the next call starts it again, through its socket unit;"
          " `systemctl --user stop microkimid.socket` keeps it down\n");
    }
  }
  return FinishOutput(output, protocol::kExitDone);
}

// A daemon that would not start again is better left running.
Status CheckConfigFile() {
  auto file = ReadConfig(cli::ConfigFile());
  if (!file) return Fail(std::move(file.error()));
  for (const cli::ConfigProblem& problem : file->read.problems) {
    if (!problem.fatal) continue;
    return Fail(ErrorCode::kBadRequest,
                "the daemon would not start again: " + ProblemLine(*file, problem),
                problem.hint.empty() ? "mend the config file first" : problem.hint);
  }
  return {};
}

int RestartCommand(const Command& command, int argc, char** argv) {
  StopOptions options;
  if (auto code = ParseStop(command, argc, argv, options)) return *code;
  if (Status good = CheckConfigFile(); !good) return ReportError(good.error());
  auto stopped = StopDaemon(options.paths, options.grace_ms);
  if (!stopped) return ReportError(stopped.error());
  // Behind a socket unit the next connection starts it.
  if (!stopped->socket_activated) {
    if (Status started = StartDaemon(options.paths, After(kStartTimeout)); !started) {
      return ReportError(started.error());
    }
  }
  auto session = ConnectSession(options.paths);
  if (!session) return ReportError(session.error().error);
  auto hello = session->Hello(After(kStartTimeout));
  if (!hello) return ReportError(hello.error());
  Output output(STDOUT_FILENO);
  output.Write("microkimid " + hello->build_id + " runs, pid " + std::to_string(hello->pid) + "\n");
  if (stopped->socket_activated && hello->build_id != protocol::BuildId()) {
    output.Write("it is of another build than this mk (" + std::string(protocol::BuildId()) +
                 "): its unit starts another program; `mk service status` says which\n");
  }
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
