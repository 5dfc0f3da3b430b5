// The lines of a log that is rotated while it is read: NAME.log becomes NAME.1.log, that becomes
// NAME.2.log, and a new NAME.log begins.

#pragma once

#include <sys/types.h>

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "client/unique_fd.h"
#include "protocol/error.h"

namespace mk::client {

class LogReader {
 public:
  using OnLine = std::function<void(std::string_view line)>;

  explicit LogReader(std::string file) : file_(std::move(file)) {}

  // Hands over every whole line that is there and was not handed over before, the oldest first.
  // Each call goes on where the last one stopped, in whatever file that is now. The first one
  // begins with the oldest file. A log that is not there has no lines. Errors: kPermissionDenied,
  // kIoError.
  protocol::Status Read(const OnLine& on_line);
  // The end of the log, when it is not followed: a last line that has no newline.
  void Finish(const OnLine& on_line);

  // Whether there has been any file.
  bool found() const { return found_; }

 private:
  struct Open {
    UniqueFd fd;
    ino_t inode = 0;
  };

  protocol::Result<Open> OpenFile(const std::string& path) const;
  protocol::Status OpenLaterFiles();
  protocol::Status Drain(const OnLine& on_line);
  void TakeBytes(std::string_view bytes, const OnLine& on_line);

  const std::string file_;
  std::deque<Open> files_;  // being read, then those after it, the newest last
  off_t offset_ = 0;        // in the first of them
  std::string partial_;     // a line whose end is not there yet
  bool found_ = false;
};

}  // namespace mk::client
