// EventFd: wakes a thread that waits in poll(). Signal() may be called from any thread.

#pragma once

#include <poll.h>
#include <sys/eventfd.h>

#include <cstdint>

#include "engine/base/unique_fd.h"

namespace mk::daemon {

class EventFd {
 public:
  EventFd() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  // False when the process is out of descriptors; checked once at boot.
  bool valid() const { return static_cast<bool>(fd_); }
  int fd() const { return fd_.get(); }

  void Signal() const {
    const uint64_t one = 1;
    // The counter saturates far beyond reach; a full counter still leaves the fd readable.
    [[maybe_unused]] const auto written = ::write(fd_.get(), &one, sizeof one);
  }
  void Clear() const {
    uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(fd_.get(), &count, sizeof count);
  }
  // Waits until signalled or `timeout_ms` have passed (-1: for ever), then clears.
  void Wait(int timeout_ms) const {
    pollfd entry{fd_.get(), POLLIN, 0};
    if (::poll(&entry, 1, timeout_ms) > 0) Clear();
  }

 private:
  UniqueFd fd_;
};

}  // namespace mk::daemon
