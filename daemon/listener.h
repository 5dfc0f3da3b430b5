// The AF_UNIX socket that clients connect to: made, checked and removed by us, never by libzmq.
//
// libzmq's own bind() unlinks whatever is at the path and leaves the socket behind; so the daemon
// creates, binds and listens itself and hands the descriptor over (ZMQ_USE_FD), in the same way as
// it hands over one that systemd passed.

#pragma once

#include <sys/types.h>

#include <string>

#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk::daemon {

// What a plain connect to the path finds.
enum class ProbeResult {
  kNobody,  // no file, or a socket without a listener
  kLive,    // somebody accepts connections
  kForeign  // something at the path that is not a socket, or that we may not connect to
};
ProbeResult Probe(const std::string& socket_path);

// A bound, listening, non-blocking socket of mode 0600 at the path. A stale socket there is
// removed first, anything else is refused. The caller holds the lock and has probed.
Result<UniqueFd> Listen(const std::string& socket_path);

// Path that a listening AF_UNIX socket is bound to; empty when it has none (an abstract address is
// none).
std::string BoundPath(int fd);

// Inode of the file at a path (0: none): to see whether it is still the socket that we bound.
ino_t PathInode(const std::string& path);

}  // namespace mk::daemon
