#include "daemon/fd_limit.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

namespace mk::daemon {
namespace {

// Set once at boot before any thread starts; accept4 runs on libzmq's thread.
std::atomic<int> accept_below{-1};
std::atomic<uint64_t> refused{0};

}  // namespace

FdLimit RaiseFdLimit() {
  // A service that asks for unlimited descriptors gets this many; the kernel's tables grow with
  // use.
  constexpr rlim_t kEnough = 1 << 20;
  rlimit limits{};
  if (getrlimit(RLIMIT_NOFILE, &limits) != 0) limits.rlim_cur = limits.rlim_max = 1024;
  const rlim_t wanted = std::min(limits.rlim_max, kEnough);
  if (limits.rlim_cur < wanted) {
    rlimit raised = limits;
    raised.rlim_cur = wanted;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limits = raised;
  }
  FdLimit result;
  result.limit = static_cast<size_t>(std::min(limits.rlim_cur, kEnough));
  const size_t reserve = std::min(kReservedFds, result.limit / 2);
  result.max_connections = result.limit - reserve;
  accept_below.store(static_cast<int>(result.max_connections), std::memory_order_relaxed);
  return result;
}

uint64_t RefusedConnections() {
  return refused.load(std::memory_order_relaxed);
}

}  // namespace mk::daemon

// Takes the place of the C library's accept4() in this process; see the top of the header. The
// kernel hands out the lowest free descriptor, so a high number means that few are left.
extern "C" int accept4(int socket, sockaddr* address, socklen_t* length, int flags) {
  const long fd = syscall(SYS_accept4, socket, address, length, flags);
  if (fd < 0) {
    if (errno == EMFILE || errno == ENOMEM || errno == ENOBUFS) {
      mk::daemon::refused.fetch_add(1, std::memory_order_relaxed);
      errno = ECONNABORTED;
    }
    return -1;
  }
  const int below = mk::daemon::accept_below.load(std::memory_order_relaxed);
  if (below >= 0 && fd >= below) {
    close(static_cast<int>(fd));
    mk::daemon::refused.fetch_add(1, std::memory_order_relaxed);
    errno = ECONNABORTED;
    return -1;
  }
  return static_cast<int>(fd);
}
