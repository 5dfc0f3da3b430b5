// The daemon's log: one line per event, on stderr (foreground, systemd) or in the state directory.
//
// Use spdlog::info() and its siblings everywhere; this sets up the default logger.

#pragma once

#include <string>

#include "engine/base/result.h"

namespace mk::daemon {

struct LogOptions {
  bool to_stderr = false;
  std::string file;  // empty: no file; rotated at 8 MiB, three files kept
  std::string level = "info";
};

Status SetUpLog(const LogOptions& options);
void SetLogLevel(const std::string& level);

// Log file of the daemon on a socket: daemons on different sockets write different files.
std::string LogFileFor(const std::string& state_directory, const std::string& socket_path,
                       bool is_default_socket);

}  // namespace mk::daemon
