#include "client/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

namespace mk::client {
namespace {

sigset_t Watched() {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGINT);
  ::sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

SignalWatch::SignalWatch() {
  const sigset_t set = Watched();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  fd_.Reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
}

SignalWatch::~SignalWatch() {
  Take();
  const sigset_t set = Watched();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

int SignalWatch::Take() const {
  int count = 0;
  signalfd_siginfo info = {};
  while (::read(fd_.get(), &info, sizeof(info)) == sizeof(info)) ++count;
  return count;
}

void IgnoreBrokenPipes() {
  ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace mk::client
