// The socket that systemd holds for the daemon (socket activation).

#pragma once

#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk::daemon {

// FileDescriptorName= of the socket in microkimid.socket.
inline constexpr const char* kActivationName = "microkimid";

// Whether LISTEN_PID and LISTEN_FDS say that this process was given sockets.
bool SocketsArePassed();

// The socket that was passed to this process (LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES), non-blocking
// and closed on exec; an empty descriptor if none was. Of several the one named kActivationName is
// taken, the others are closed. The variables are removed from the environment: children must not
// take the descriptors for theirs. Call it once, before threads exist. Errors: kInvalidArgument
// when the variables contradict each other, or what was passed is no listening AF_UNIX stream
// socket with a path.
Result<UniqueFd> TakeActivationSocket();

}  // namespace mk::daemon
