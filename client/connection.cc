#include "client/connection.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mk::client {
namespace {

using protocol::ErrorCode;

tl::unexpected<ConnectFailure> NoConnection(Absence absence, std::string message,
                                            std::string hint) {
  return tl::unexpected<ConnectFailure>(
      {{ErrorCode::kUnreachable, std::move(message), std::move(hint), {}}, absence});
}

bool IsSocket(const std::string& path) {
  struct stat info = {};
  return ::stat(path.c_str(), &info) == 0 && S_ISSOCK(info.st_mode);
}

tl::unexpected<ConnectFailure> ConnectError(int error, const std::string& path) {
  // The system says the same of a socket without a listener and of a file.
  if (error == ECONNREFUSED && !IsSocket(path)) error = ENOTSOCK;
  switch (error) {
    case ENOENT:
      return NoConnection(Absence::kNobody, "no daemon runs: there is no socket at " + path,
                          "start one with `microkimid`, or let `mk run` start it");
    case ECONNREFUSED:
      return NoConnection(Absence::kNobody, "no daemon runs: nobody listens at " + path,
                          "start one with `microkimid`, or let `mk run` start it");
    case EACCES:
    case EPERM:
      return NoConnection(Absence::kOther, "no permission to connect to " + path,
                          "the socket and its folder must be yours: ls -ld " + path);
    case EAGAIN:
    case EINPROGRESS:
      return NoConnection(Absence::kOther, "the daemon at " + path + " accepts no connection",
                          "it is overloaded or hangs; try again, or end it with SIGKILL");
    case ENOTSOCK:
      return NoConnection(Absence::kOther, path + " is not a socket",
                          "remove the file, or name another socket with --socket");
    case ENOTDIR:
      return NoConnection(Absence::kOther, "part of the path is not a folder: " + path,
                          "name another socket with --socket");
    default:
      return NoConnection(Absence::kOther,
                          "cannot connect to " + path + ": " + std::strerror(error), "");
  }
}

// The daemon reads prompts and names of files; one of another user gets none.
bool PeerIsOursOrRoot(int fd, uid_t& peer) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return false;
  peer = credentials.uid;
  return peer == ::geteuid() || peer == 0;
}

protocol::Status Closed() {
  return protocol::Fail(ErrorCode::kUnreachable, kClosedByDaemon,
                        "`mk status` says whether it still runs; its log says why");
}

}  // namespace

tl::expected<Connection, ConnectFailure> Connection::Connect(const std::string& socket_path,
                                                             Deadline deadline) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket_path.size() >= sizeof(address.sun_path))
    return ConnectError(ENAMETOOLONG, socket_path);
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return ConnectError(errno, socket_path);

  // connect() waits while the daemon's queue of connections is full; not for ever.
  const int wait_ms = std::max(1, PollTimeout(deadline));
  const timeval wait = {wait_ms / 1000, wait_ms % 1000 * 1000};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
  int result = 0;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  } while (result != 0 && errno == EINTR && Clock::now() < deadline);
  if (result != 0) return ConnectError(errno, socket_path);

  uid_t peer = 0;
  if (!PeerIsOursOrRoot(fd.get(), peer)) {
    return NoConnection(Absence::kOther,
                        "the daemon at " + socket_path + " belongs to user " +
                            std::to_string(peer) + ", not to you",
                        "name a socket of your own with --socket");
  }
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  Connection connection(std::move(fd));
  connection.out_ = protocol::ZmtpClientHello();
  return connection;
}

void Connection::Queue(std::string_view payload) {
  std::string& queue = decoder_.ready() ? out_ : held_;
  queue += protocol::ZmtpMessageHeader(payload.size());
  queue += payload;
}

short Connection::events() const {
  return static_cast<short>(POLLIN | (sent_ < out_.size() ? POLLOUT : 0));
}

protocol::Status Connection::Flush() {
  while (sent_ < out_.size()) {
    const ssize_t sent =
        ::send(fd_.get(), out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return {};
      return Closed();
    }
    sent_ += static_cast<size_t>(sent);
  }
  out_.clear();
  sent_ = 0;
  return {};
}

protocol::Status Connection::Receive() {
  std::array<char, 65536> buffer;
  // A bounded number of reads, so that output and signals have their turn.
  for (int reads = 0; reads < 16; ++reads) {
    const ssize_t got = ::recv(fd_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return {};
      return Closed();
    }
    if (got == 0) return Closed();
    last_heard_ = Clock::now();
    const auto size = static_cast<size_t>(got);
    if (protocol::Status fed = decoder_.Feed({buffer.data(), size}); !fed) return fed;
    out_ += decoder_.TakeReplies();
    if (decoder_.ready()) out_ += std::exchange(held_, {});
    if (size < buffer.size()) return {};
  }
  return {};
}

protocol::Status Connection::OnReady(short revents) {
  // What came before the daemon closed the connection is read first.
  protocol::Status received;
  if ((revents & (POLLIN | POLLHUP | POLLERR)) != 0) received = Receive();
  protocol::Status sent;
  if (received) sent = Flush();
  return received ? sent : received;
}

}  // namespace mk::client
