#include "client/atomic_write.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/unique_fd.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Status;

Status CannotWrite(const std::string& path, int error) {
  return Fail(
      error == EACCES || error == EPERM ? ErrorCode::kPermissionDenied : ErrorCode::kIoError,
      "cannot write " + path + ": " + std::strerror(error),
      "check the folder, its permissions and its free space");
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return CannotWrite(path, errno);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return {};
}

// So that the new name survives a power failure; what cannot be flushed is as good as it gets.
void FlushFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd) ::fsync(fd.get());
}

Status WriteBeside(std::string_view bytes, const std::string& path) {
  std::string temporary = path + ".XXXXXX";
  const UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (!fd) return CannotWrite(path, errno);
  struct stat old = {};
  if (::stat(path.c_str(), &old) == 0) ::fchmod(fd.get(), old.st_mode & 07777);
  Status written = WriteAll(fd.get(), bytes, path);
  if (written && ::fsync(fd.get()) != 0) written = CannotWrite(path, errno);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = CannotWrite(path, errno);
  }
  if (!written) {
    ::unlink(temporary.c_str());
    return written;
  }
  FlushFolder(path);
  return {};
}

// Where the file is that a path names.
protocol::Result<std::string> TargetOf(const std::string& path) {
  char resolved[PATH_MAX];
  std::string target = ::realpath(path.c_str(), resolved) != nullptr ? std::string(resolved) : path;
  struct stat info = {};
  if (::lstat(target.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
    return Fail(ErrorCode::kIoError, "cannot write " + path + ": it is not a regular file",
                "name another file");
  }
  return target;
}

}  // namespace

Status CheckWritable(const std::string& path) {
  const auto target = TargetOf(path);
  if (!target) return Fail(target.error());
  const size_t slash = target->rfind('/');
  const std::string folder = slash == std::string::npos ? "." : target->substr(0, slash + 1);
  if (::access(folder.c_str(), W_OK | X_OK) == 0) return {};
  return CannotWrite(path, errno);
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  const auto target = TargetOf(path);
  if (!target) return Fail(target.error());
  return WriteBeside(bytes, *target);
}

}  // namespace mk::client
