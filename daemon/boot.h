// The first acts of the daemon, in the order that matters: descriptors, signals, the socket that
// systemd may have passed, the directory, the lock, and only then a socket of our own.

#pragma once

#include <string>
#include <variant>

#include "daemon/fd_limit.h"
#include "daemon/lock_file.h"
#include "daemon/options.h"
#include "engine/base/unique_fd.h"
#include "protocol/error.h"
#include "protocol/socket_path.h"

namespace mk::daemon {

struct Booted {
  FdLimit fds;
  UniqueFd signals;  // signalfd: TERM, INT, HUP; blocked for all threads
  protocol::SocketPaths paths;
  bool activated = false;  // the socket is systemd's: not ours to remove; a socket unit starts us
  LockFile lock;
  UniqueFd listening;
};

// Somebody else serves the socket already.
struct AlreadyRunning {
  std::string text;  // "microkimid 0.1.0 (pid 123) runs already on /run/..."
};

// Errors are one line for people. Nothing is left behind after an error or AlreadyRunning.
protocol::Result<std::variant<Booted, AlreadyRunning>> Boot(const Options& options);

}  // namespace mk::daemon
