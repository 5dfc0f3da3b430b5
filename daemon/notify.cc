#include "daemon/notify.h"

#include <fcntl.h>
#include <systemd/sd-daemon.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

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

bool StartedBySystemd() {
  if (std::getenv("NOTIFY_SOCKET") == nullptr) return false;
  // systemd names the process that it executes, from version 248 on.
  const char* executed = std::getenv("SYSTEMD_EXEC_PID");
  if (executed == nullptr || executed == std::to_string(getpid())) return true;
  unsetenv("NOTIFY_SOCKET");
  return false;
}

void NotifySystemd(const std::string& state) {
  sd_notify(0, state.c_str());
}

void NotifyReloading() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const auto micros =
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  NotifySystemd("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(micros));
}

std::chrono::microseconds WatchdogTime() {
  uint64_t usec = 0;
  return std::chrono::microseconds(sd_watchdog_enabled(0, &usec) > 0 ? usec : 0);
}

}  // namespace mk::daemon
