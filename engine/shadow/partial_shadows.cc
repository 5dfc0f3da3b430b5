#include "engine/shadow/partial_shadows.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "engine/base/atomic_file.h"
#include "engine/base/file.h"

namespace mk {
namespace {

std::string PartialPathOf(const std::string& target) {
  return target + ".partial";
}

// Whether the open file is still the one of that name: it may have been finished or removed between
// opening and locking it.
bool IsStillThere(int fd, const std::string& path) {
  const Result<FileIdentity> held = IdentityOf(fd, path);
  const Result<OpenedFile> there = OpenForReading(path);
  return held && there && held->device == there->identity.device &&
         held->inode == there->identity.inode;
}

}  // namespace

Result<PartialShadows> PartialShadows::Open(const std::string& target) {
  const std::string path = PartialPathOf(target);
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!fd) return Fail(SystemError(errno, "create", path));
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !IsStillThere(fd.get(), path)) {
    return Fail(ErrorCode::kInvalidArgument, "somebody else is making " + target,
                "`mk jobs` shows what runs");
  }
  return PartialShadows(target, path, std::move(fd));
}

PartialShadows::~PartialShadows() {
  if (fd_ && !keep_) ::unlink(path_.c_str());
}

Status PartialShadows::Begin(uint64_t bytes) {
  if (::ftruncate(fd_.get(), 0) != 0) return Fail(SystemError(errno, "empty", path_));
  return ReserveSpace(fd_.get(), bytes, path_);
}

Result<uint64_t> PartialShadows::size() const {
  const Result<FileIdentity> identity = IdentityOf(fd_.get(), path_);
  if (!identity) return Fail(identity.error());
  return identity->size;
}

Status PartialShadows::Read(uint64_t offset, std::span<std::byte> out) const {
  return ReadAt(fd_.get(), offset, out, path_);
}

Status PartialShadows::Write(uint64_t offset, std::span<const std::byte> bytes) const {
  return WriteAt(fd_.get(), offset, bytes, path_);
}

Status PartialShadows::Sync() const {
  if (::fdatasync(fd_.get()) == 0) return {};
  return Fail(SystemError(errno, "sync", path_));
}

Status PartialShadows::Finish() {
  if (::fsync(fd_.get()) != 0) return Fail(SystemError(errno, "sync", path_));
  if (::rename(path_.c_str(), target_.c_str()) != 0) {
    return Fail(SystemError(errno, "rename " + path_ + " to", target_));
  }
  keep_ = true;
  const std::string folder = std::filesystem::path(target_).parent_path().string();
  return SyncDirectory(folder.empty() ? "." : folder);
}

void RemovePartialShadows(const std::string& target) {
  const std::string path = PartialPathOf(target);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) ::unlink(path.c_str());
}

}  // namespace mk
