// Tells whoever started the daemon how the start went: a pipe (--ready-fd) and systemd.

#pragma once

#include <chrono>
#include <string>

#include "engine/base/unique_fd.h"

namespace mk::daemon {

// One line on a pipe: "ready" or "error: ...". At most one is written; the pipe is then closed.
class ReadyPipe {
 public:
  ReadyPipe() = default;
  explicit ReadyPipe(int fd);

  void Ready() { Write("ready\n"); }
  void Failed(const std::string& reason);
  void Say(const std::string& line) { Write(line + "\n"); }

 private:
  void Write(const std::string& line);

  UniqueFd fd_;
};

// Whether systemd started this process as a service. NOTIFY_SOCKET alone does not say so: whatever
// is started from within another service inherits it, and would report in that one's name. Then the
// variable is removed, so that nothing below speaks to systemd. Call it before threads exist.
bool StartedBySystemd();

// Sends a state to systemd ("READY=1\nSTATUS=..."); nothing happens where none listens.
void NotifySystemd(const std::string& state);
// "RELOADING=1", with the time that systemd orders it by; READY=1 ends it.
void NotifyReloading();

// After so long without WATCHDOG=1 systemd ends the service; 0: it does not.
std::chrono::microseconds WatchdogTime();

}  // namespace mk::daemon
