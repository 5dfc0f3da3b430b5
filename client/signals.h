// Ctrl-C and SIGTERM as a descriptor for poll(), instead of handlers.

#pragma once

#include "client/unique_fd.h"

namespace mk::client {

// While it lives, SIGINT and SIGTERM do not end the process but make fd() readable. One at a time.
class SignalWatch {
 public:
  SignalWatch();
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  // Number of signals that came since the last call.
  int Take() const;

 private:
  UniqueFd fd_;
};

// A reader that leaves shows as EPIPE, not as a signal. Called once, first thing.
void IgnoreBrokenPipes();

}  // namespace mk::client
