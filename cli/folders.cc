#include "cli/folders.h"

#include "protocol/home.h"

namespace mk::cli {

using protocol::UserFolder;

std::string ConfigFile() {
  return UserFolder("XDG_CONFIG_HOME", ".config") + "/microkimi/config.toml";
}

std::string StateFolder() {
  return UserFolder("XDG_STATE_HOME", ".local/state") + "/microkimi";
}

std::string ModelsFolder() {
  return UserFolder("XDG_DATA_HOME", ".local/share") + "/microkimi/models";
}

std::string CacheFolder() {
  return UserFolder("XDG_CACHE_HOME", ".cache") + "/microkimi";
}

}  // namespace mk::cli
