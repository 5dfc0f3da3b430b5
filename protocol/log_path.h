// Where the daemon's log, its jobs and its sessions are, for the daemon that writes them and the
// client that shows the log.

#pragma once

#include <cstddef>
#include <string>

#include "protocol/error.h"

namespace mk::protocol {

// Older logs that are kept beside the one that is written.
inline constexpr size_t kKeptLogs = 2;

// $XDG_STATE_HOME/microkimi/microkimid.log. A daemon on another socket than the usual one has a
// name with a digest of the socket's path, so that no two write one file. Errors: those of
// StateDirectory().
Result<std::string> LogFileOf(const std::string& socket);

// $XDG_STATE_HOME/microkimi/jobs, or a folder with the same digest in its name.
Result<std::string> JobFolderOf(const std::string& socket);

// $XDG_STATE_HOME/microkimi/sessions, or a folder with the same digest in its name.
Result<std::string> SessionFolderOf(const std::string& socket);

// The log that was written before: microkimid.1.log, and microkimid.2.log before that. 0: `file`.
std::string RotatedLog(const std::string& file, size_t number);

}  // namespace mk::protocol
