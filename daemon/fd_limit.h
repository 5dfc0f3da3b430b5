// File descriptors as a budget.
//
// libzmq's ipc listener aborts the process when accept() fails with EMFILE, so connections may
// never use up the descriptors. Two walls: the soft limit is raised as far as it goes at boot, and
// this file defines accept4() for the whole process (libzmq's calls resolve to it): a connection
// whose descriptor lies in the reserve at the top of the limit is closed again at once, and the
// caller sees ECONNABORTED, which libzmq takes for a peer that left early.

#pragma once

#include <cstddef>
#include <cstdint>

namespace mk::daemon {

// Descriptors that connections never get: model files, logs, queues, the next socket.
inline constexpr size_t kReservedFds = 64;

struct FdLimit {
  size_t limit = 0;            // descriptors that the process may have open
  size_t max_connections = 0;  // of these, how many connections may hold
};

// Raises the soft limit to the hard one and returns what is now allowed.
FdLimit RaiseFdLimit();

// Connections refused so far because descriptors ran short.
uint64_t RefusedConnections();

}  // namespace mk::daemon
