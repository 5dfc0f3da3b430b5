// Where the daemon's log is: a file, or somewhere that is no file.

#pragma once

#include <string>

#include "client/access.h"

namespace mk::client {

struct LogSource {
  std::string file;    // absolute
  bool alive = false;  // a daemon answered, and said so
};

// What is asked of journalctl in place of a file.
struct JournalWish {
  std::string lines;  // "50", "all"
  bool follow = false;
  std::string since;     // as given
  std::string priority;  // of journalctl: "warning"
};

// Asks the daemon, for a moment and without starting one; one that is not there or hangs has its
// log where a daemon of this socket and this environment writes it. Errors: kNotFound for a daemon
// that logs to the journal (the hint is the command that shows it) or to a standard error.
protocol::Result<LogSource> FindLog(const AccessOptions& access, const JournalWish& wish);

// The command that shows a user unit's log; `unit` may be empty.
std::string JournalCommand(const std::string& unit, const JournalWish& wish);

}  // namespace mk::client
