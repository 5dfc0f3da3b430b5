#include "cli/folders.h"

#include <cstdlib>

#include "protocol/home.h"

namespace mk::cli {
namespace {

// Relative values are to be ignored, says the XDG specification.
std::string Base(const char* variable, const char* fallback) {
  const char* value = std::getenv(variable);
  return value != nullptr && value[0] == '/' ? value : protocol::HomeDirectory() + "/" + fallback;
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
