// Ctrl-C and SIGTERM as a descriptor for poll(), instead of handlers.

#pragma once

#include <signal.h>

#include <initializer_list>

#include "client/unique_fd.h"

namespace mk::client {

// While it lives, its signals do not end or stop the process but make fd() readable. When one lives
// inside another, both watch; each signal is taken once.
class SignalWatch {
 public:
  SignalWatch() : SignalWatch({SIGINT, SIGTERM}) {}
  explicit SignalWatch(std::initializer_list<int> signals);
  // Signals that were not taken are forgotten.
  ~SignalWatch();
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;

  int fd() const { return fd_.get(); }
  // The next signal that came; 0: none.
  int Next() const;
  // Number of signals that came since the last call.
  int Take() const;
  // Whether a SIGTERM was among those taken.
  bool terminated() const { return terminated_; }

 private:
  sigset_t before_;
  UniqueFd fd_;
  mutable bool terminated_ = false;
};

// A reader that leaves shows as EPIPE, not as a signal. Called once, first thing.
void IgnoreBrokenPipes();

}  // namespace mk::client
