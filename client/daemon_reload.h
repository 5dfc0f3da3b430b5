// A daemon that runs, as somebody who changes its config file sees it.

#pragma once

#include <optional>
#include <string>

#include "client/access.h"

namespace mk::client {

struct RunningDaemon {
  protocol::StatusDone status;
  // Its process is ours to signal: the one at the other end of the connection. Not so behind a
  // socket unit, whose connections are systemd's, and in another PID namespace.
  bool can_signal = false;

  // "microkimid, pid 12"
  std::string name() const;
  // The command that makes it read its config file again.
  std::string reload_command() const;
};

// Never starts one; nothing when none runs, or none that answers soon.
std::optional<RunningDaemon> FindRunningDaemon(const AccessOptions& access);

// Makes it read its config file again. Errors: kUnsupported with the command that does it where we
// cannot, kPermissionDenied, kUnreachable.
protocol::Status ReloadDaemon(const RunningDaemon& daemon);

}  // namespace mk::client
