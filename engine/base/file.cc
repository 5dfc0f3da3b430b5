#include "engine/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

namespace mk {
namespace {

FileIdentity ToIdentity(const struct stat& info) {
  FileIdentity identity;
  identity.device = info.st_dev;
  identity.inode = info.st_ino;
  identity.size = static_cast<uint64_t>(info.st_size);
  identity.mtime_ns = static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 +
                      static_cast<int64_t>(info.st_mtim.tv_nsec);
  return identity;
}

std::string HintFor(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return "check the spelling of the path";
    case EACCES:
    case EPERM:
      return "check the permissions of the file and of its directories";
    case ENOSPC:
    case EDQUOT:
      return "free some disk space or write to another disk";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    case EROFS:
      return "write to another file system, this one is read-only";
    default:
      return {};
  }
}

ErrorCode CodeFor(int error_number) {
  switch (error_number) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case ENAMETOOLONG:
    case ELOOP:
      return ErrorCode::kInvalidArgument;
    case ENOMEM:
      return ErrorCode::kOutOfMemory;
    default:
      return ErrorCode::kIo;
  }
}

// One system call moves at most this much; the kernel's own limit is just below 2 GiB.
constexpr size_t kMaxTransfer = size_t{1} << 30;

}  // namespace

Error SystemError(int error_number, const std::string& what, const std::string& path) {
  return Error{CodeFor(error_number),
               "cannot " + what + " " + path + ": " +
                   std::error_code(error_number, std::generic_category()).message(),
               HintFor(error_number)};
}

Result<FileIdentity> IdentityOf(int fd, const std::string& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return Fail(SystemError(errno, "examine", path));
  return ToIdentity(info);
}

Result<OpenedFile> OpenForReading(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return Fail(ErrorCode::kInvalidArgument, "a path with a NUL byte names no file",
                "check the path");
  }
  OpenedFile file;
  // O_NONBLOCK: opening a pipe must not wait for its other end. It means nothing to regular files.
  file.fd.Reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.fd) return Fail(SystemError(errno, "open", path));
  struct stat info {};
  if (::fstat(file.fd.get(), &info) != 0) return Fail(SystemError(errno, "examine", path));
  if (!S_ISREG(info.st_mode)) {
    return Fail(ErrorCode::kInvalidArgument,
                path + (S_ISDIR(info.st_mode) ? " is a directory" : " is not a regular file"),
                "name the file itself");
  }
  file.identity = ToIdentity(info);
  return file;
}

Status ReadAt(int fd, uint64_t offset, std::span<std::byte> out, const std::string& path) {
  while (!out.empty()) {
    const size_t want = std::min(out.size(), kMaxTransfer);
    const ssize_t got = ::pread(fd, out.data(), want, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Fail(SystemError(errno, "read", path));
    }
    if (got == 0) {
      return Fail(ErrorCode::kCorrupt,
                  path + " ends at byte " + std::to_string(offset) + ", " +
                      std::to_string(out.size()) + " bytes short",
                  "the file was cut; copy or build it again");
    }
    offset += static_cast<uint64_t>(got);
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

void ReadAhead(int fd, uint64_t offset, uint64_t bytes) {
  (void)::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes),
                        POSIX_FADV_WILLNEED);
}

Status WriteAt(int fd, uint64_t offset, std::span<const std::byte> bytes, const std::string& path) {
  while (!bytes.empty()) {
    const size_t want = std::min(bytes.size(), kMaxTransfer);
    const ssize_t got = ::pwrite(fd, bytes.data(), want, static_cast<off_t>(offset));
    if (got < 0) {
      if (errno == EINTR) continue;
      return Fail(SystemError(errno, "write", path));
    }
    offset += static_cast<uint64_t>(got);
    bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return {};
}

Status ReserveSpace(int fd, uint64_t bytes, const std::string& path) {
  if (bytes == 0) return {};
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  // A file system that cannot reserve still gets the length; a full disk then shows in a write.
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) {
    result = ::ftruncate(fd, static_cast<off_t>(bytes));
  }
  if (result != 0) return Fail(SystemError(errno, "reserve space for", path));
  return {};
}

Result<std::string> ReadWholeFile(const std::string& path, uint64_t max_bytes) {
  auto file = OpenForReading(path);
  if (!file) return Fail(file.error());
  const uint64_t size = file->identity.size;
  if (size > max_bytes) {
    return Fail(ErrorCode::kInvalidArgument,
                path + " has " + std::to_string(size) + " bytes, more than the " +
                    std::to_string(max_bytes) + " allowed",
                "check that this is the right file");
  }
  std::string content(static_cast<size_t>(size), '\0');
  const Status read = ReadAt(file->fd.get(), 0, std::as_writable_bytes(std::span(content)), path);
  if (!read) return Fail(read.error());
  return content;
}

std::string CanonicalPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path resolved = std::filesystem::canonical(path, error);
  return error ? path : resolved.string();
}

}  // namespace mk
