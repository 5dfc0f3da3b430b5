#include "daemon/notify.h"

#include <fcntl.h>
#include <systemd/sd-daemon.h>

#include <algorithm>

namespace mk::daemon {

ReadyPipe::ReadyPipe(int fd) : fd_(fd) {
  if (fd_) fcntl(fd_.get(), F_SETFD, FD_CLOEXEC);
}

void ReadyPipe::Failed(const std::string& reason) {
  std::string line = reason;
  std::replace(line.begin(), line.end(), '\n', ' ');
  Write("error: " + line + "\n");
}

void ReadyPipe::Write(const std::string& line) {
  if (!fd_) return;
  // SIGPIPE is ignored; a reader that left does not matter.
  [[maybe_unused]] const auto written = ::write(fd_.get(), line.data(), line.size());
  fd_.Reset();
}

void NotifySystemd(const std::string& state) {
  sd_notify(0, state.c_str());
}

uint64_t WatchdogMicroseconds() {
  uint64_t usec = 0;
  return sd_watchdog_enabled(0, &usec) > 0 ? usec : 0;
}

}  // namespace mk::daemon
