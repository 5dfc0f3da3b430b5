// Where the daemon's program is.

#pragma once

#include <string>
#include <vector>

namespace mk::client {

inline constexpr const char* kDaemonName = "microkimid";

// The absolute path of the microkimid beside this mk; "" when there is none that can be run.
std::string DaemonBesideMk();

// The file that is executed: MICROKIMI_DAEMON, else the one beside mk, else a name without '/',
// which is looked for in PATH.
std::string DaemonProgram();

// Goes on as the daemon's program, which does what files need that mk has no code for: `microkimid
// ARGUMENTS...`. Returns the exit code only when that is impossible.
int BecomeDaemonTool(std::vector<std::string> arguments);

}  // namespace mk::client
