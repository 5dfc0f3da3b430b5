#include "client/daemon_program.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "client/report.h"

namespace mk::client {

std::string DaemonBesideMk() {
  char self[PATH_MAX];
  const ssize_t size = ::readlink("/proc/self/exe", self, sizeof(self));
  if (size <= 0 || size >= static_cast<ssize_t>(sizeof(self))) return {};
  std::string path(self, static_cast<size_t>(size));
  path = path.substr(0, path.rfind('/') + 1) + kDaemonName;
  return ::access(path.c_str(), X_OK) == 0 ? path : std::string();
}

std::string DaemonProgram() {
  if (const char* named = std::getenv("MICROKIMI_DAEMON"); named != nullptr && named[0] != '\0') {
    return named;
  }
  std::string beside = DaemonBesideMk();
  return beside.empty() ? kDaemonName : beside;
}

int BecomeDaemonTool(std::vector<std::string> arguments) {
  std::string program = DaemonProgram();
  std::vector<char*> pointers = {program.data()};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execvp(pointers[0], pointers.data());
  return ReportError({protocol::ErrorCode::kUnreachable,
                      "cannot run " + program + ": " + std::strerror(errno),
                      "install microkimid beside mk, or set MICROKIMI_DAEMON",
                      {}});
}

}  // namespace mk::client
