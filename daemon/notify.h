// Tells whoever started the daemon how the start went: a pipe (--ready-fd) and systemd.

#pragma once

#include <cstdint>
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

// Sends a state to systemd ("READY=1\nSTATUS=..."); nothing happens where none listens.
void NotifySystemd(const std::string& state);

// Microseconds after which systemd kills a service that does not send WATCHDOG=1; 0: it does not.
uint64_t WatchdogMicroseconds();

}  // namespace mk::daemon
