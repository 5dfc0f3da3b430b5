// Getting a session with the daemon.

#pragma once

#include <string>

#include "client/session.h"
#include "protocol/socket_path.h"

namespace mk::client {

struct AccessOptions {
  std::string socket;      // --socket; empty: the usual one
  bool autostart = false;  // start a daemon when none answers
};

// A session whose hello has been sent, and with autostart answered. Errors: kUnreachable (all of no
// daemon, no permission, a folder that others may enter), kUnsupportedVersion.
protocol::Result<Session> OpenSession(const AccessOptions& options);

// Waits until a daemon that leaves (kShuttingDown) has closed the connection; the next
// OpenSession() finds or starts another one. False: it did not leave in time.
bool WaitUntilItLeft(Session& session);

// Only connects. kNobody tells a daemon that is not there from other failures.
tl::expected<Session, ConnectFailure> ConnectSession(const protocol::SocketPaths& paths);

}  // namespace mk::client
