// Starting a daemon when none answers.

#pragma once

#include <string>

#include "client/clock.h"
#include "protocol/error.h"
#include "protocol/socket_path.h"

namespace mk::client {

// A daemon that is slow to boot is not waited for any longer.
inline constexpr milliseconds kStartTimeout{30'000};

// Starts `microkimid` for this socket and waits until it serves. Of clients that call this at the
// same time exactly one starts a daemon; the others wait for it. The program is MICROKIMI_DAEMON,
// else the one beside mk, else the one in PATH. Errors: kUnreachable, with what the daemon said.
protocol::Status StartDaemon(const protocol::SocketPaths& paths, Deadline deadline);

}  // namespace mk::client
