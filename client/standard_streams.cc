#include "client/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace mk::client {

void OccupyClosedStreams() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) != -1 || errno != EBADF) continue;
    // The lowest free number is `fd`: those below it are occupied. Opened the wrong way round, it
    // fails as a closed one does. It stays open for as long as the process lives.
    ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

}  // namespace mk::client
