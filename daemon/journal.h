// Whether the daemon's standard error is the system's journal, and of which unit.

#pragma once

#include <string>

namespace mk::daemon {

// The user unit whose journal gets what is written to standard error; empty when standard error is
// something else. Reads JOURNAL_STREAM, by which systemd tells the device and inode of the stream.
std::string JournalUnit();

}  // namespace mk::daemon
