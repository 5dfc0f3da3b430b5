#include "client/daemon_program.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>

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

}  // namespace mk::client
