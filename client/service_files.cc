#include "client/service_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "client/atomic_write.h"
#include "client/unique_fd.h"
#include "protocol/home.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;
using protocol::Status;

// No unit of ours is near this.
constexpr size_t kMostBytes = size_t{1} << 20;

tl::unexpected<protocol::Error> Failed(const std::string& what, int error) {
  const bool denied = error == EACCES || error == EPERM;
  return Fail(denied ? ErrorCode::kPermissionDenied : ErrorCode::kIoError,
              what + ": " + std::strerror(error));
}

std::string FolderOf(const std::string& path) {
  return path.substr(0, path.rfind('/'));
}

std::string LinkFolder(const std::string& folder) {
  return folder + "/sockets.target.wants";
}

std::string LinkPath(const std::string& folder) {
  return LinkFolder(folder) + "/" + kSocketUnit;
}

}  // namespace

Result<std::string> UserUnitFolder() {
  if (const std::string config = protocol::UserFolder("XDG_CONFIG_HOME", ".config");
      !config.empty()) {
    return config + "/systemd/user";
  }
  return Fail(ErrorCode::kBadRequest, "neither XDG_CONFIG_HOME nor HOME tells where units belong",
              "set HOME");
}

Result<UnitFile> ReadUnitFile(const std::string& path) {
  UnitFile file;
  file.path = path;
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return file;
    return Failed("cannot look at " + path, errno);
  }
  file.exists = true;
  if (!S_ISREG(info.st_mode)) return file;
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd) return Failed("cannot read " + path, errno);
  std::array<char, 4096> buffer;
  while (file.text.size() <= kMostBytes) {
    const ssize_t got = ::read(fd.get(), buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failed("cannot read " + path, errno);
    if (got == 0) break;
    file.text.append(buffer.data(), static_cast<size_t>(got));
  }
  file.author = AuthorOf(file.text);
  return file;
}

Status WriteUnitFile(const UnitFile& file, const std::string& text) {
  if (Status made = protocol::MakeFolders(FolderOf(file.path)); !made) return made;
  return WriteFileAtomically(file.path, text);
}

Result<std::string> SetAside(const UnitFile& file) {
  std::string aside = file.path + ".old";
  struct stat info = {};
  for (int i = 2; ::lstat(aside.c_str(), &info) == 0; ++i) {
    aside = file.path + ".old" + std::to_string(i);
  }
  if (::rename(file.path.c_str(), aside.c_str()) != 0) {
    return Failed("cannot rename " + file.path, errno);
  }
  return aside;
}

Status RemoveFile(const std::string& path) {
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return Failed("cannot remove " + path, errno);
  return {};
}

bool IsLinked(const std::string& folder) {
  struct stat info = {};
  return ::lstat(LinkPath(folder).c_str(), &info) == 0;
}

Status Link(const std::string& folder) {
  if (Status made = protocol::MakeFolders(LinkFolder(folder)); !made) return made;
  const std::string target = folder + "/" + kSocketUnit;
  if (::symlink(target.c_str(), LinkPath(folder).c_str()) != 0 && errno != EEXIST) {
    return Failed("cannot make the link " + LinkPath(folder), errno);
  }
  return {};
}

Status Unlink(const std::string& folder) {
  if (Status removed = RemoveFile(LinkPath(folder)); !removed) return removed;
  ::rmdir(LinkFolder(folder).c_str());  // stays while other units are in it
  return {};
}

}  // namespace mk::client
