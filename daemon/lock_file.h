// The lock that makes a daemon the only one on its socket.
//
// flock() on a file beside the socket, taken before anything is bound or loaded and held until the
// process ends; the kernel drops it when the process dies, however it dies. The file holds the pid
// for people; the lock, not the pid, is the identity.

#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk::daemon {

class LockFile {
 public:
  LockFile() = default;

  // Takes the lock, creating the file (mode 0600) if need be; waits at most so long for another
  // process to give it up. The default is for those who only look whether the lock is held and take
  // it for a moment. Errors: kIncompatible when another process holds it, kPermissionDenied, kIo.
  static Result<LockFile> Acquire(
      const std::string& path, std::chrono::milliseconds patience = std::chrono::milliseconds(50));

  // Pid written by the holder, 0 if none can be read. For messages only.
  static pid_t ReadPid(const std::string& path);

  // Whether the path still names the file that is locked; false when it was removed or replaced.
  bool StillThere() const;
  bool held() const { return static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }

 private:
  static Result<LockFile> TryAcquire(const std::string& path);

  LockFile(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}

  std::string path_;
  UniqueFd fd_;
};

}  // namespace mk::daemon
