#include "client/autostart.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "client/connection.h"
#include "client/daemon_program.h"
#include "client/state_folder.h"
#include "client/unique_fd.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

constexpr milliseconds kLockPoll{5};

tl::unexpected<protocol::Error> CannotStart(const std::string& why, std::string hint = {}) {
  return Fail(ErrorCode::kUnreachable, "the daemon could not be started: " + why, std::move(hint));
}

// Where the daemon's output goes until it has opened its own log.
Result<std::string> BootLog() {
  Result<std::string> state = MakeStateFolder();
  if (!state) return CannotStart(state.error().message, state.error().hint);
  return *state + "/microkimid.boot.log";
}

// Waits for the lock of starters. Another starter keeps it for as long as its daemon boots.
Result<UniqueFd> TakeStartLock(const std::string& path, Deadline deadline) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return CannotStart("cannot open " + path + ": " + std::strerror(errno));
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return CannotStart("cannot lock " + path + ": " + std::strerror(errno));
    }
    if (Clock::now() >= deadline) {
      return CannotStart("another mk has been starting it for too long",
                         "look into the daemon's log in the state folder");
    }
    ::poll(nullptr, 0, static_cast<int>(kLockPoll.count()));
  }
  return fd;
}

// In the child: becomes the daemon, or leaves with the errno of the failed exec.
[[noreturn]] void BecomeDaemon(const std::vector<const char*>& argv, int ready_fd, int log_fd) {
  ::setsid();
  // It must not inherit what mk ignores or blocks.
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(null, 0);
  ::dup2(log_fd, 1);
  ::dup2(log_fd, 2);
  if (::chdir("/") != 0) ::_exit(126);
  // Pipes of a shell must not be held open by a daemon: everything but the ready pipe goes.
  const auto keep = static_cast<unsigned>(ready_fd);
  if (keep > 3) ::close_range(3, keep - 1, 0);
  ::close_range(keep + 1, ~0U, 0);
  ::fcntl(ready_fd, F_SETFD, 0);
  ::execvp(argv[0], const_cast<char* const*>(argv.data()));
  const std::string failed =
      std::string("error: cannot run ") + argv[0] + ": " + std::strerror(errno) + "\n";
  if (::write(ready_fd, failed.data(), failed.size()) < 0) ::_exit(126);
  ::_exit(127);
}

// The line that the daemon says: "ready", or "error: ...". Empty when it said none before its end.
Result<std::string> ReadVerdict(int fd, Deadline deadline) {
  std::string line;
  char buffer[512];
  while (line.find('\n') == std::string::npos && line.size() < 4096) {
    pollfd ready = {fd, POLLIN, 0};
    const int count = ::poll(&ready, 1, PollTimeout(deadline));
    if (count == 0) return CannotStart("it was not ready in time");
    if (count < 0) continue;
    const ssize_t got = ::read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    line.append(buffer, static_cast<size_t>(got));
  }
  return line.substr(0, line.find('\n'));
}

std::string HowItEnded(pid_t child) {
  int status = 0;
  if (::waitpid(child, &status, 0) != child) return "it ended before it was ready";
  if (WIFSIGNALED(status)) {
    return "it was ended by signal " + std::to_string(WTERMSIG(status)) + " before it was ready";
  }
  return "it ended with code " + std::to_string(WEXITSTATUS(status)) + " before it was ready";
}

Status Spawn(const protocol::SocketPaths& paths, Deadline deadline) {
  Result<std::string> log_path = BootLog();
  if (!log_path) return Fail(std::move(log_path.error()));
  const int log_flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW;
  UniqueFd log(::open(log_path->c_str(), log_flags, 0600));
  if (!log) return CannotStart("cannot write " + *log_path + ": " + std::strerror(errno));
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return CannotStart(std::strerror(errno));
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);

  const std::string program = DaemonProgram();
  const std::string ready_fd = std::to_string(writing.get());
  const std::vector<const char*> argv = {program.c_str(), "--socket",       paths.socket.c_str(),
                                         "--ready-fd",    ready_fd.c_str(), nullptr};
  const pid_t child = ::fork();
  if (child < 0) return CannotStart(std::string("fork: ") + std::strerror(errno));
  if (child == 0) BecomeDaemon(argv, writing.get(), log.get());
  writing.Reset();

  Result<std::string> verdict = ReadVerdict(reading.get(), deadline);
  if (!verdict) {
    ::kill(child, SIGTERM);
    return Fail(ErrorCode::kUnreachable, verdict.error().message, "its log: " + *log_path);
  }
  if (*verdict == "ready") return {};
  if (verdict->empty()) return CannotStart(HowItEnded(child), "its log: " + *log_path);
  std::string why = verdict->starts_with("error: ") ? verdict->substr(7) : *verdict;
  // The daemon puts its hint behind a semicolon.
  const size_t hint = why.find("; ");
  if (hint == std::string::npos) return CannotStart(why, "its log: " + *log_path);
  return CannotStart(why.substr(0, hint), why.substr(hint + 2));
}

}  // namespace

Status StartDaemon(const protocol::SocketPaths& paths, Deadline deadline) {
  if (Status checked = protocol::PrepareSocketDirectory(paths.directory); !checked) {
    return CannotStart(checked.error().message, checked.error().hint);
  }
  Result<UniqueFd> lock = TakeStartLock(paths.start_lock, deadline);
  if (!lock) return Fail(std::move(lock.error()));
  // Somebody else may have started one while we waited.
  auto probe = Connection::Connect(paths.socket, deadline);
  if (probe || probe.error().absence != Absence::kNobody) return {};
  return Spawn(paths, deadline);
}

}  // namespace mk::client
