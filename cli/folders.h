// Where things of a user are (XDG base directories), for the daemon and for those who look after
// it.

#pragma once

#include <string>

namespace mk::cli {

// All absolute.
std::string ConfigFile();    // $XDG_CONFIG_HOME/microkimi/config.toml
std::string StateFolder();   // $XDG_STATE_HOME/microkimi
std::string ModelsFolder();  // $XDG_DATA_HOME/microkimi/models
std::string CacheFolder();   // $XDG_CACHE_HOME/microkimi

}  // namespace mk::cli
