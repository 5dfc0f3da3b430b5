// The daemon's log: one line per event, on stderr (foreground, systemd) or in the state directory.
//
// Control characters in a message are written as \n, \x1b and so on: whatever a client names its
// files, an event stays one line.
//
// Use spdlog::info() and its siblings everywhere; this sets up the default logger.

#pragma once

#include <cstddef>
#include <string>

#include "engine/base/result.h"

namespace mk::daemon {

struct LogOptions {
  bool to_stderr = false;
  std::string file;  // empty: no file
  // At this size the file is kept as another, and a new one begun; see protocol/log_path.h.
  size_t max_bytes = 8u << 20;
  std::string level = "info";
};

Status SetUpLog(const LogOptions& options);
void SetLogLevel(const std::string& level);

}  // namespace mk::daemon
