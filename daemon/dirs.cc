#include "daemon/dirs.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

namespace mk::daemon {
namespace {

namespace fs = std::filesystem;

fs::path Home() {
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return home;
  const passwd* entry = getpwuid(geteuid());
  return entry != nullptr && entry->pw_dir != nullptr ? entry->pw_dir : "/";
}

// Relative values are to be ignored, says the XDG specification.
fs::path Base(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  return value != nullptr && value[0] == '/' ? fs::path(value) : Home() / fallback;
}

}  // namespace

fs::path StateDirectory() {
  return Base("XDG_STATE_HOME", ".local/state") / "microkimi";
}
fs::path ConfigFile() {
  return Base("XDG_CONFIG_HOME", ".config") / "microkimi" / "config.toml";
}
fs::path UserModels() {
  return Base("XDG_DATA_HOME", ".local/share") / "microkimi" / "models";
}

fs::path CacheDirectory() {
  return Base("XDG_CACHE_HOME", ".cache") / "microkimi";
}

fs::path BundledModels() {
  std::error_code error;
  const fs::path executable = fs::read_symlink("/proc/self/exe", error);
  if (error) return {};
  const fs::path prefix = executable.parent_path().parent_path();
  const fs::path installed = prefix / "share" / "microkimi" / "models";
  return fs::is_directory(installed, error) ? installed : prefix / "models";
}

Status MakePrivateDirectory(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return {};
  fs::create_directories(path.parent_path(), error);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return Fail(errno == EACCES ? ErrorCode::kPermissionDenied : ErrorCode::kIo,
                "cannot create " + path.string() + ": " + std::strerror(errno));
  }
  return {};
}

}  // namespace mk::daemon
