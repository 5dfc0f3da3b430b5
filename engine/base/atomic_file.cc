#include "engine/base/atomic_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

namespace mk {
namespace {

std::string DirectoryOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

AtomicFile::AtomicFile(std::string path, std::string temp_path, UniqueFd fd)
    : path_(std::move(path)), temp_path_(std::move(temp_path)), fd_(std::move(fd)) {}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temp_path_(std::move(other.temp_path_)),
      fd_(std::move(other.fd_)),
      pending_(std::exchange(other.pending_, false)) {}

AtomicFile::~AtomicFile() {
  if (pending_) ::unlink(temp_path_.c_str());
}

Result<AtomicFile> AtomicFile::Create(const std::string& path, unsigned mode,
                                      const std::string& tag) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Fail(ErrorCode::kInvalidArgument, "an empty path or one with a NUL byte names no file",
                "check the path");
  }
  std::string temp_path = path + ".tmp." + std::to_string(::getpid());
  if (!tag.empty()) temp_path += "." + tag;
  if (::unlink(temp_path.c_str()) != 0 && errno != ENOENT) {
    return Fail(SystemError(errno, "replace", temp_path));
  }
  // O_EXCL: never write through a link that someone put there.
  UniqueFd fd(::open(temp_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!fd) return Fail(SystemError(errno, "create", temp_path));
  return AtomicFile(path, std::move(temp_path), std::move(fd));
}

Status AtomicFile::Allocate(uint64_t bytes) {
  return ReserveSpace(fd_.get(), bytes, path_);
}

Status AtomicFile::WriteAt(uint64_t offset, std::span<const std::byte> bytes) {
  return mk::WriteAt(fd_.get(), offset, bytes, temp_path_);
}

Status AtomicFile::Commit() {
  if (!pending_) return Fail(ErrorCode::kInternal, path_ + " was committed twice");
  if (::fsync(fd_.get()) != 0) return Fail(SystemError(errno, "sync", temp_path_));
  if (::rename(temp_path_.c_str(), path_.c_str()) != 0) {
    return Fail(SystemError(errno, "rename " + temp_path_ + " to", path_));
  }
  pending_ = false;
  fd_.Reset();
  return SyncDirectory(DirectoryOf(path_));
}

Status WriteFileAtomically(const std::string& path, std::string_view content, unsigned mode) {
  auto file = AtomicFile::Create(path, mode);
  if (!file) return Fail(file.error());
  const Status written = file->WriteAt(0, std::as_bytes(std::span(content)));
  if (!written) return written;
  return file->Commit();
}

Status SyncDirectory(const std::string& directory) {
  const UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return Fail(SystemError(errno, "open", directory));
  // Some network file systems cannot sync a directory and say so with EINVAL.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) {
    return Fail(SystemError(errno, "sync", directory));
  }
  return {};
}

Result<uint64_t> FreeSpaceFor(const std::string& path) {
  const std::string directory = DirectoryOf(path);
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) {
    return Fail(SystemError(errno, "examine", directory));
  }
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace mk
