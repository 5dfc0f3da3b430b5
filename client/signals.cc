#include "client/signals.h"

#include <sys/signalfd.h>
#include <unistd.h>

namespace mk::client {

SignalWatch::SignalWatch(std::initializer_list<int> signals) {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : signals) ::sigaddset(&set, signal);
  ::sigprocmask(SIG_BLOCK, &set, &before_);
  fd_.Reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalWatch::~SignalWatch() {
  Take();
  ::sigprocmask(SIG_SETMASK, &before_, nullptr);
}

int SignalWatch::Next() const {
  signalfd_siginfo info = {};
  if (::read(fd_.get(), &info, sizeof(info)) != sizeof(info)) return 0;
  const auto signal = static_cast<int>(info.ssi_signo);
  if (signal == SIGTERM) terminated_ = true;
  return signal;
}

int SignalWatch::Take() const {
  int count = 0;
  while (Next() != 0) ++count;
  return count;
}

void IgnoreBrokenPipes() {
  ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace mk::client
