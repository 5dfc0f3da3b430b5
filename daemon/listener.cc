#include "daemon/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "protocol/socket_path.h"

namespace mk::daemon {
namespace {

// Connections that may wait for libzmq's thread to accept them.
constexpr int kBacklog = 512;

tl::unexpected<Error> Errno(const std::string& what, const std::string& path) {
  const int error = errno;
  const auto code = error == EACCES || error == EPERM || error == EROFS
                        ? ErrorCode::kPermissionDenied
                        : ErrorCode::kIo;
  return Fail(code, what + " " + path + ": " + std::strerror(error));
}

Result<sockaddr_un> Address(const std::string& path) {
  sockaddr_un address{};
  if (path.size() > protocol::MaxSocketPathBytes()) {
    return Fail(ErrorCode::kInvalidArgument,
                "the socket path has " + std::to_string(path.size()) + " bytes, the limit is " +
                    std::to_string(protocol::MaxSocketPathBytes()) + ": " + path,
                "choose a shorter one with --socket or MICROKIMI_SOCKET");
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

}  // namespace

ProbeResult Probe(const std::string& socket_path) {
  auto address = Address(socket_path);
  if (!address) return ProbeResult::kForeign;
  struct stat info {};
  if (lstat(socket_path.c_str(), &info) != 0) {
    return errno == ENOENT ? ProbeResult::kNobody : ProbeResult::kForeign;
  }
  if (!S_ISSOCK(info.st_mode)) return ProbeResult::kForeign;
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return ProbeResult::kForeign;
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) == 0) {
    return ProbeResult::kLive;
  }
  switch (errno) {
    case ECONNREFUSED:
    case ENOENT:
      return ProbeResult::kNobody;
    case EAGAIN:  // a listener with a full backlog
    case EINPROGRESS:
      return ProbeResult::kLive;
    default:
      return ProbeResult::kForeign;
  }
}

Result<UniqueFd> Listen(const std::string& socket_path) {
  auto address = Address(socket_path);
  if (!address) return Fail(address.error());
  struct stat info {};
  if (lstat(socket_path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return Fail(ErrorCode::kPermissionDenied,
                  "refusing to replace " + socket_path + ": it is not a socket",
                  "move it away or choose another path with --socket");
    }
    if (unlink(socket_path.c_str()) != 0)
      return Errno("cannot remove the stale socket", socket_path);
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return Errno("cannot create a socket for", socket_path);
  // On Linux the mode of the descriptor at bind() becomes, less the umask, the mode of the file: no
  // moment at which the socket is open to others.
  if (fchmod(fd.get(), 0600) != 0) return Errno("cannot set the mode of", socket_path);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
    return Errno("cannot bind", socket_path);
  }
  if (chmod(socket_path.c_str(), 0600) != 0) return Errno("cannot set the mode of", socket_path);
  if (listen(fd.get(), kBacklog) != 0) return Errno("cannot listen on", socket_path);
  return fd;
}

std::string BoundPath(int fd) {
  sockaddr_un address{};
  socklen_t size = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      address.sun_family != AF_UNIX || size <= offsetof(sockaddr_un, sun_path)) {
    return {};
  }
  return std::string(address.sun_path,
                     strnlen(address.sun_path, size - offsetof(sockaddr_un, sun_path)));
}

ino_t PathInode(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

}  // namespace mk::daemon
