// microkimid: boots, serves, leaves.

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

#include "daemon/activation.h"
#include "daemon/boot.h"
#include "daemon/dirs.h"
#include "daemon/log.h"
#include "daemon/notify.h"
#include "daemon/options.h"
#include "daemon/pack_tool.h"
#include "daemon/plan_tool.h"
#include "daemon/replay_tool.h"
#include "daemon/server.h"
#include "daemon/shadow_tool.h"
#include "daemon/stream_bench_tool.h"
#include "protocol/log_path.h"
#include "protocol/version.h"

namespace mk::daemon {
namespace {

// A start-up as its starter sees it: who is told, and in which words.
class Starter {
 public:
  // `detached`: the starter is our own parent process, which prints what it reads.
  Starter(ReadyPipe pipe, bool detached, bool loud)
      : pipe_(std::move(pipe)), detached_(detached), loud_(loud) {}

  void Ready(const std::string& socket) {
    NotifySystemd("READY=1\nSTATUS=ready");
    if (detached_)
      return pipe_.Say("microkimid (pid " + std::to_string(getpid()) + ") is ready on " + socket);
    pipe_.Ready();
  }
  int AlreadyRunning(const std::string& text) {
    if (loud_) std::printf("%s\n", text.c_str());
    if (detached_) {
      pipe_.Say(text);
    } else {
      pipe_.Ready();  // there is a daemon: that is what was wanted
    }
    return protocol::kExitDone;
  }
  int Failed(const std::string& message, const std::string& hint) {
    const std::string line = hint.empty() ? message : message + "; " + hint;
    if (loud_) std::fprintf(stderr, "microkimid: %s\n", line.c_str());
    if (!loud_) spdlog::error("{}", line);
    pipe_.Failed(line);
    return protocol::kExitUnreachable;
  }

 private:
  ReadyPipe pipe_;
  bool detached_;
  bool loud_;
};

// Config, state directory and log.
Status SetUp(const Options& options, ServerSetup& setup) {
  auto config = LoadConfig(options.config_file);
  if (!config) return Fail(config.error());
  setup.options = options;
  setup.config = WithOverrides(config->config, options);
  auto state = protocol::StateDirectory();
  if (!state) return Fail(ErrorCode::kNotFound, state.error().message, state.error().hint);
  if (auto made = MakePrivateDirectory(*state); !made) return made;
  setup.state_directory = *state;
  auto jobs = protocol::JobFolderOf(setup.booted.paths.socket);
  if (!jobs) return Fail(ErrorCode::kNotFound, jobs.error().message, jobs.error().hint);
  setup.job_folder = std::move(*jobs);
  auto sessions = protocol::SessionFolderOf(setup.booted.paths.socket);
  if (!sessions) {
    return Fail(ErrorCode::kNotFound, sessions.error().message, sessions.error().hint);
  }
  setup.session_folder = std::move(*sessions);
  LogOptions log;
  log.level = setup.config.log_level;
  setup.supervised = std::getenv("NOTIFY_SOCKET") != nullptr;
  log.to_stderr = options.foreground || setup.supervised;
  if (!log.to_stderr) {
    auto file = protocol::LogFileOf(setup.booted.paths.socket);
    if (!file) return Fail(ErrorCode::kNotFound, file.error().message, file.error().hint);
    log.file = std::move(*file);
  }
  setup.log_file = log.file;
  if (auto status = SetUpLog(log); !status) return status;
  for (const std::string& warning : config->warnings) spdlog::warn("{}", warning);
  return {};
}

int Serve(const Options& options, Starter& starter) {
  auto booted = Boot(options);
  if (!booted) return starter.Failed(booted.error().message, booted.error().hint);
  if (const auto* running = std::get_if<AlreadyRunning>(&*booted)) {
    return starter.AlreadyRunning(running->text);
  }
  ServerSetup setup;
  setup.booted = std::move(std::get<Booted>(*booted));
  const std::string socket = setup.booted.paths.socket;
  const bool ours = !setup.booted.activated;
  auto failed = [&](const Error& error) {
    if (ours) unlink(socket.c_str());
    return starter.Failed(error.message, error.hint);
  };
  if (auto status = SetUp(options, setup); !status) return failed(status.error());
  auto server = Server::Create(std::move(setup));
  if (!server) return failed(server.error());
  spdlog::info("microkimid {} serves on {}", protocol::BuildId(), socket);
  starter.Ready(socket);
  return (*server)->Run();
}

// In the parent: prints what the child says of its start, and returns the exit code.
int WaitForChild(UniqueFd pipe, pid_t child) {
  std::string line;
  char buffer[512];
  ssize_t got = 0;
  while ((got = read(pipe.get(), buffer, sizeof buffer)) > 0) {
    line.append(buffer, static_cast<size_t>(got));
  }
  if (line.empty()) {
    int status = 0;
    waitpid(child, &status, 0);
    std::fprintf(stderr, "microkimid: the daemon ended before it was ready\n");
    return protocol::kExitUnreachable;
  }
  if (line.rfind("error: ", 0) == 0) {
    std::fprintf(stderr, "microkimid: %s", line.c_str() + 7);
    return protocol::kExitUnreachable;
  }
  std::fputs(line.c_str(), stdout);
  return protocol::kExitDone;
}

// Goes into the background before any thread or context exists: forking later would break both.
int Detach(const Options& options) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    std::perror("microkimid: pipe");
    return protocol::kExitUnreachable;
  }
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t child = fork();
  if (child < 0) {
    std::perror("microkimid: fork");
    return protocol::kExitUnreachable;
  }
  if (child > 0) {
    writing.Reset();
    return WaitForChild(std::move(reading), child);
  }
  reading.Reset();
  setsid();
  UniqueFd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = 0; fd <= 2; ++fd) dup2(null.get(), fd);
  if (chdir("/") != 0) spdlog::warn("cannot leave the working directory");
  Starter starter(ReadyPipe(writing.Release()), true, false);
  return Serve(options, starter);
}

int Main(int argc, const char* const* argv) {
  const std::string_view tool = argc > 1 ? argv[1] : "";
  if (tool == kPackTool) return PackTool(argc - 1, argv + 1);
  if (tool == kReplayTool) return ReplayTool(argc - 1, argv + 1);
  if (tool == kStreamBenchTool) return StreamBenchTool(argc - 1, argv + 1);
  if (tool == kShadowTool) return ShadowTool(argc - 1, argv + 1);
  if (tool == kPlanTool) return PlanTool(argc - 1, argv + 1);
  auto parsed = ParseOptions(argc, argv, "microkimid " + std::string(protocol::BuildId()));
  if (const int* code = std::get_if<int>(&parsed)) return *code;
  const Options& options = std::get<Options>(parsed);
  spdlog::set_level(spdlog::level::off);  // until the log is set up
  const bool supervised = StartedBySystemd() || SocketsArePassed();
  if (!options.foreground && options.ready_fd < 0 && !supervised) return Detach(options);
  Starter starter(ReadyPipe(options.ready_fd), false, options.foreground || supervised);
  return Serve(options, starter);
}

}  // namespace
}  // namespace mk::daemon

int main(int argc, char** argv) {
  return mk::daemon::Main(argc, argv);
}
