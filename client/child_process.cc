#include "client/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "client/unique_fd.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

constexpr size_t kKeptBytes = size_t{1} << 20;

struct Pipe {
  UniqueFd reading;
  UniqueFd writing;
};

Result<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return Fail(ErrorCode::kIoError, std::string("cannot make a pipe: ") + std::strerror(errno));
  }
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// What posix_spawn wants, and frees itself.
class SpawnSetup {
 public:
  SpawnSetup(int out, int err) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, err, STDERR_FILENO);
    ::posix_spawnattr_init(&attributes_);
    // It must not inherit that mk ignores broken pipes.
    sigset_t defaults;
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGPIPE);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGDEF);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::vector<std::string> EnvironmentWith(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    if (!variables.contains(std::string(text.substr(0, text.find('='))))) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

std::vector<char*> Pointers(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Takes what is there; false: nothing more will come.
bool ReadSome(int fd, std::string& text) {
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(fd, buffer.data(), buffer.size());
  if (got < 0) return errno == EINTR;
  const size_t room = kKeptBytes - text.size();
  text.append(buffer.data(), std::min(room, static_cast<size_t>(got)));
  return got > 0;
}

// False: the deadline passed before both pipes ended.
bool ReadBoth(Pipe& out, Pipe& err, ProgramEnd& end, Deadline deadline) {
  while (out.reading || err.reading) {
    std::array<pollfd, 2> ready = {
        {{out.reading.get(), POLLIN, 0}, {err.reading.get(), POLLIN, 0}}};
    const int count = ::poll(ready.data(), ready.size(), PollTimeout(deadline));
    if (count == 0) return false;
    if (count < 0) continue;  // EINTR
    if (ready[0].revents != 0 && !ReadSome(out.reading.get(), end.out)) out.reading.Reset();
    if (ready[1].revents != 0 && !ReadSome(err.reading.get(), end.err)) err.reading.Reset();
  }
  return true;
}

int WaitFor(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Result<ProgramEnd> RunProgram(const std::vector<std::string>& command,
                              const std::map<std::string, std::string>& variables,
                              Deadline deadline) {
  Result<Pipe> out = MakePipe();
  Result<Pipe> err = MakePipe();
  if (!out) return Fail(std::move(out.error()));
  if (!err) return Fail(std::move(err.error()));
  std::vector<std::string> words = command;
  std::vector<std::string> environment = EnvironmentWith(variables);
  pid_t child = -1;
  const SpawnSetup setup(out->writing.get(), err->writing.get());
  const int error = ::posix_spawnp(&child, words[0].c_str(), setup.actions(), setup.attributes(),
                                   Pointers(words).data(), Pointers(environment).data());
  if (error != 0) {
    return Fail(error == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIoError,
                "cannot run " + command[0] + ": " + std::strerror(error));
  }
  out->writing.Reset();
  err->writing.Reset();
  ProgramEnd end;
  const bool ended = ReadBoth(*out, *err, end, deadline);
  if (!ended) ::kill(child, SIGKILL);
  end.code = WaitFor(child);
  if (!ended) return Fail(ErrorCode::kTimeout, command[0] + " did not end in time");
  return end;
}

}  // namespace mk::client
