#include "daemon/lock_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>

namespace mk::daemon {
namespace {

bool SameFile(int fd, const std::string& path) {
  struct stat by_fd {};
  struct stat by_path {};
  if (fstat(fd, &by_fd) != 0 || lstat(path.c_str(), &by_path) != 0) return false;
  return by_fd.st_dev == by_path.st_dev && by_fd.st_ino == by_path.st_ino;
}

std::string Reason(const std::string& what, const std::string& path, int error) {
  return what + " " + path + ": " + std::strerror(error);
}

}  // namespace

Result<LockFile> LockFile::Acquire(const std::string& path, std::chrono::milliseconds patience) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  const auto give_up = std::chrono::steady_clock::now() + patience;
  while (true) {
    auto lock = TryAcquire(path);
    const bool held = !lock && lock.error().code == ErrorCode::kIncompatible;
    if (!held || std::chrono::steady_clock::now() >= give_up) return lock;
    std::this_thread::sleep_for(kPause);
  }
}

Result<LockFile> LockFile::TryAcquire(const std::string& path) {
  // Between open and flock another daemon may end and a cleaner may remove the file: then the lock
  // is on a file without a name and worth nothing. Try again on the new file.
  for (int attempt = 0; attempt < 16; ++attempt) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) {
      const auto code = errno == EACCES || errno == EPERM || errno == ELOOP
                            ? ErrorCode::kPermissionDenied
                            : ErrorCode::kIo;
      return Fail(code, Reason("cannot open the lock file", path, errno),
                  "remove it or choose another socket with --socket");
    }
    if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        return Fail(ErrorCode::kIncompatible, "another daemon holds the lock " + path);
      }
      return Fail(ErrorCode::kIo, Reason("cannot lock", path, errno));
    }
    if (!SameFile(fd.get(), path)) continue;
    const std::string pid = std::to_string(getpid()) + "\n";
    if (ftruncate(fd.get(), 0) != 0 ||
        pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
      return Fail(ErrorCode::kIo, Reason("cannot write the lock file", path, errno));
    }
    return LockFile(path, std::move(fd));
  }
  return Fail(ErrorCode::kIo, "the lock file " + path + " keeps being replaced");
}

pid_t LockFile::ReadPid(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) return 0;
  std::array<char, 32> text{};
  const ssize_t got = read(fd.get(), text.data(), text.size());
  if (got <= 0) return 0;
  pid_t pid = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + got, pid);
  return parsed.ec == std::errc() && pid > 0 ? pid : 0;
}

bool LockFile::StillThere() const {
  return fd_ && SameFile(fd_.get(), path_);
}

}  // namespace mk::daemon
