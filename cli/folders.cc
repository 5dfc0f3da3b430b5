#include "cli/folders.h"

#include <pwd.h>
#include <unistd.h>

#include <cstdlib>

namespace mk::cli {
namespace {

std::string Home() {
  if (const char* home = std::getenv("HOME"); home != nullptr && home[0] == '/') return home;
  const passwd* entry = ::getpwuid(::geteuid());
  return entry != nullptr && entry->pw_dir != nullptr ? entry->pw_dir : "/";
}

// Relative values are to be ignored, says the XDG specification.
std::string Base(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  return value != nullptr && value[0] == '/' ? value : Home() + "/" + fallback;
}

}  // namespace

std::string ConfigFile() {
  return Base("XDG_CONFIG_HOME", ".config") + "/microkimi/config.toml";
}

std::string StateFolder() {
  return Base("XDG_STATE_HOME", ".local/state") + "/microkimi";
}

std::string ModelsFolder() {
  return Base("XDG_DATA_HOME", ".local/share") + "/microkimi/models";
}

std::string CacheFolder() {
  return Base("XDG_CACHE_HOME", ".cache") + "/microkimi";
}

}  // namespace mk::cli
