// Where the daemon's program is.

#pragma once

#include <string>

namespace mk::client {

inline constexpr const char* kDaemonName = "microkimid";

// The absolute path of the microkimid beside this mk; "" when there is none that can be run.
std::string DaemonBesideMk();

// What mk starts: MICROKIMI_DAEMON, else the one beside mk, else the bare name, which is looked for
// in PATH.
std::string DaemonProgram();

}  // namespace mk::client
