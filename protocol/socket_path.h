// Where client and daemon meet.
//
// The socket's folder is $XDG_RUNTIME_DIR/microkimi, else /run/user/UID/microkimi when
// /run/user/UID is a directory of ours, else $XDG_CACHE_HOME/microkimi/run. MICROKIMI_SOCKET or
// --socket name another socket; lock and pid file stand beside the socket that is used.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/error.h"

namespace mk::protocol {

// All absolute.
struct SocketPaths {
  std::string directory;   // holds the four below; mode 0700
  std::string socket;      // <name>.sock
  std::string lock;        // held (flock) by the daemon while it lives
  std::string start_lock;  // held (flock) by the client that starts the daemon
  std::string pid;         // for people: the daemon's pid, not an identity
};

// Longest path of an AF_UNIX socket, in bytes without the terminating zero.
size_t MaxSocketPathBytes();

// `override_path`: the value of --socket, empty if not given; then MICROKIMI_SOCKET, then the
// default. Reads the environment. Errors: kBadRequest for a path that is too long (the limit is
// named) or a default that cannot be formed because no variable tells where.
Result<SocketPaths> FindSocketPaths(std::string_view override_path = {});

// The same without MICROKIMI_SOCKET: where the daemon is when nobody says otherwise.
Result<SocketPaths> UsualSocketPaths();

// Paths beside a socket whose path is known.
Result<SocketPaths> PathsOfSocket(std::string_view socket_path);

// Refuses a directory that is a symbolic link, that belongs to somebody else, or that group or
// others may enter. kNotFound when it does not exist.
Status CheckSocketDirectory(const std::string& directory);

// Creates the directory with mode 0700 (parents too) if it is missing, then checks it.
Status PrepareSocketDirectory(const std::string& directory);

// $XDG_STATE_HOME/microkimi, else ~/.local/state/microkimi: logs and everything that is saved.
Result<std::string> StateDirectory();

}  // namespace mk::protocol
