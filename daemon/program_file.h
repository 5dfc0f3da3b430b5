// The file that the daemon was started from, and whether another one has taken its place: an update
// was installed, and the next daemon will be that one.

#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "daemon/step_task.h"

namespace mk::daemon {

class ProgramFile {
 public:
  // Of the file at `path` as it is now.
  explicit ProgramFile(std::string path);
  // Of this process. The kernel knows the file even if another one is at its path already.
  static ProgramFile OfThisProcess();

  const std::string& path() const { return path_; }

  // Looks, unless it did so just now, and returns whether the file is another one. One that cannot
  // be run, or that still changes from look to look, is not: it is just being written.
  bool Look(Clock::time_point now);
  bool replaced() const { return replaced_; }

 private:
  // What tells one file from another.
  struct Mark {
    dev_t device = 0;
    ino_t inode = 0;
    off_t bytes = 0;
    int64_t seconds = 0;  // of its last change
    int64_t nanoseconds = 0;
    bool operator==(const Mark&) const = default;
  };
  static std::optional<Mark> MarkOf(const std::string& path);

  std::string path_;
  std::optional<Mark> own_;    // none: the file was not to be found, and nothing is told
  std::optional<Mark> other_;  // what was there at the last look
  std::optional<Clock::time_point> looked_;
  bool replaced_ = false;
};

}  // namespace mk::daemon
