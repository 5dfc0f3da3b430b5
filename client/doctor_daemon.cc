#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <sstream>

#include "client/daemon_program.h"
#include "client/doctor.h"
#include "client/progress.h"
#include "protocol/version.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;

// A daemon that hangs is what one wants to hear of.
constexpr milliseconds kPatience{5000};

int64_t HolderOf(const std::string& lock) {
  struct stat info = {};
  if (::lstat(lock.c_str(), &info) != 0) return 0;
  return LockHolder(FileText("/proc/locks"), info.st_dev, info.st_ino);
}

Finding SocketFolder(const protocol::SocketPaths& paths) {
  const protocol::Status checked = protocol::CheckSocketDirectory(paths.directory);
  if (checked) return {"socket folder", Health::kOk, paths.directory + " is yours alone", ""};
  if (checked.error().code == ErrorCode::kNotFound) {
    return {"socket folder", Health::kOk, paths.directory + " is made by the first start", ""};
  }
  return {"socket folder", Health::kFail, checked.error().message, checked.error().hint};
}

// Nothing listens at the socket's path.
Finding NobodyAnswers(const protocol::SocketPaths& paths) {
  struct stat info = {};
  const bool there = ::lstat(paths.socket.c_str(), &info) == 0;
  if (const int64_t holder = HolderOf(paths.lock); holder > 0) {
    return {"daemon", Health::kWarn,
            "pid " + std::to_string(holder) + " holds " + paths.lock + ", but nobody answers",
            "it starts or leaves, or hangs: `mk logs` says more; end it with kill -9 " +
                std::to_string(holder)};
  }
  if (there) {
    return {"daemon", Health::kWarn, "a daemon that died left its socket at " + paths.socket,
            "the next start replaces it: microkimid"};
  }
  return {"daemon", Health::kOk, "none runs; `mk run` starts one", ""};
}

Finding SocketFile(const protocol::SocketPaths& paths, bool answered) {
  struct stat info = {};
  if (::lstat(paths.socket.c_str(), &info) != 0) {
    return {"socket", Health::kOk, "there is none at " + paths.socket, ""};
  }
  if (!S_ISSOCK(info.st_mode)) {
    return {"socket", Health::kFail, paths.socket + " is not a socket",
            "remove the file, or name another socket with --socket"};
  }
  // Whoever may enter the folder may connect if the mode says so.
  if ((info.st_mode & 0077) != 0) {
    return {"socket", Health::kWarn, paths.socket + " has mode " + ModeText(info.st_mode),
            "chmod 600 " + paths.socket};
  }
  return {
      "socket", Health::kOk,
      paths.socket + " has mode " + ModeText(info.st_mode) + (answered ? "" : ", nobody answers"),
      ""};
}

Finding Program() {
  const std::string program = DaemonProgram();
  const bool path = program.find('/') != std::string::npos;
  if (path && ::access(program.c_str(), X_OK) != 0) {
    return {"program", Health::kFail, "cannot execute " + program,
            "install microkimid beside mk, or let MICROKIMI_DAEMON name it"};
  }
  return {"program", Health::kOk, path ? program : program + ", of PATH", ""};
}

Finding Version(Session& session) {
  auto hello = session.Hello(After(kPatience));
  if (!hello) return {"daemon", Health::kFail, hello.error().message, hello.error().hint};
  const std::string name = "microkimid " + hello->build_id + ", pid " + std::to_string(hello->pid);
  if (hello->build_id != protocol::BuildId()) {
    return {"daemon", Health::kWarn,
            name + ", is another build than mk " + std::string(protocol::BuildId()), "mk restart"};
  }
  return {"daemon", Health::kOk, name + ", answers", ""};
}

Finding Models(const protocol::ModelsDone& done) {
  std::string bad;
  for (const protocol::ModelEntry& model : done.models) {
    if (!model.error.empty()) bad += (bad.empty() ? "" : "; ") + model.name + ": " + model.error;
  }
  if (!bad.empty()) {
    return {"models", Health::kWarn, bad, "mk verify NAME; remove or replace what is broken"};
  }
  if (done.models.empty()) {
    return {"models", Health::kWarn, "there are none",
            "put NAME.bin into the models folder, or name one: mk config set aliases.NAME PATH"};
  }
  return {"models", Health::kOk, std::to_string(done.models.size()) + " can be used", ""};
}

}  // namespace

int64_t LockHolder(const std::string& locks, uint64_t device, uint64_t inode) {
  std::array<char, 64> wanted;
  std::snprintf(wanted.data(), wanted.size(), "%02x:%02x:%llu", major(device), minor(device),
                static_cast<unsigned long long>(inode));
  std::istringstream lines(locks);
  for (std::string line; std::getline(lines, line);) {
    // "1: FLOCK  ADVISORY  WRITE 708 00:13:1234 0 EOF"; one that waits has "->" behind its number.
    std::istringstream words(line);
    std::string number;
    std::string kind;
    std::string advisory;
    std::string mode;
    std::string place;
    int64_t pid = 0;
    if (!(words >> number >> kind >> advisory >> mode >> pid >> place)) continue;
    if (kind == "FLOCK" && place == wanted.data()) return pid;
  }
  return 0;
}

void CheckDaemon(const AccessOptions& access, Findings& findings) {
  findings.push_back(Program());
  auto paths = protocol::FindSocketPaths(access.socket);
  if (!paths) {
    findings.push_back({"socket", Health::kFail, paths.error().message, paths.error().hint});
    return;
  }
  findings.push_back(SocketFolder(*paths));
  auto session = ConnectSession(*paths);
  findings.push_back(SocketFile(*paths, session.has_value()));
  if (!session) {
    const ConnectFailure& failure = session.error();
    // A folder or a file that is wrong has been told of.
    if (failure.absence == Absence::kNobody) {
      findings.push_back(NobodyAnswers(*paths));
    } else if (findings[findings.size() - 1].health != Health::kFail &&
               findings[findings.size() - 2].health != Health::kFail) {
      findings.push_back({"daemon", Health::kFail, failure.error.message, failure.error.hint});
    }
    return;
  }
  findings.push_back(Version(*session));
  if (findings.back().health == Health::kFail) return;
  auto models = AskFor<protocol::ModelsDone>(*session, protocol::ModelsArgs{}, kPatience);
  if (models) {
    findings.push_back(Models(*models));
  } else {
    findings.push_back({"models", Health::kFail, models.error().message, models.error().hint});
  }
}

}  // namespace mk::client
