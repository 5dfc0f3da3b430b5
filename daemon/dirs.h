// Where the daemon's files live, by the XDG base directory rules. The state directory is the
// protocol's (StateDirectory): the client shows its log.

#pragma once

#include <filesystem>

#include "engine/base/result.h"

namespace mk::daemon {

std::filesystem::path StateDirectory();  // $XDG_STATE_HOME/microkimi: logs and all that is saved
std::filesystem::path ConfigFile();      // $XDG_CONFIG_HOME/microkimi/config.toml
std::filesystem::path UserModels();      // $XDG_DATA_HOME/microkimi/models
std::filesystem::path CacheDirectory();  // $XDG_CACHE_HOME/microkimi: what can be made again
// The models that came with the program: ../share/microkimi/models beside an installed binary,
// ../models beside one in a build tree.
std::filesystem::path BundledModels();
// The tasks and texts that came with it: ../share/microkimi/eval, ../eval/data in a build tree.
std::filesystem::path BundledEvaluation();

// Creates a directory of ours with mode 0700, parents included.
Status MakePrivateDirectory(const std::filesystem::path& path);

}  // namespace mk::daemon
