#include "protocol/home.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace mk::protocol {

std::string HomeDirectory() {
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return home;
  // Services and cron jobs run without the variable.
  const passwd* entry = ::getpwuid(::geteuid());
  const bool known = entry != nullptr && entry->pw_dir != nullptr && entry->pw_dir[0] == '/';
  return known ? entry->pw_dir : "";
}

std::string UserFolder(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  if (value != nullptr && value[0] == '/') return value;
  const std::string home = HomeDirectory();
  return home.empty() ? home : home + "/" + fallback;
}

Status MakeFolders(const std::string& folder) {
  for (size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    const std::string part = folder.substr(0, slash);
    if (::mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
      const int error = errno;
      const bool denied = error == EACCES || error == EPERM;
      return Fail(denied ? ErrorCode::kPermissionDenied : ErrorCode::kIoError,
                  "cannot make the folder " + part + ": " + std::strerror(error));
    }
    if (slash == std::string::npos) return {};
  }
}

}  // namespace mk::protocol
