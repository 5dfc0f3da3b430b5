#include "daemon/activation.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "daemon/listener.h"

namespace mk::daemon {
namespace {

struct Passed {
  UniqueFd fd;
  std::string name;
};

// What sd_listen_fds_with_names() allocates.
struct FreeNames {
  void operator()(char** names) const {
    for (char** name = names; *name != nullptr; ++name) std::free(*name);
    std::free(static_cast<void*>(names));
  }
};

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::string(name) + "=" + value : std::string(name) + " unset";
}

// Everything that was passed; nothing when it was meant for another process.
Result<std::vector<Passed>> TakeAll() {
  const std::string said = Variable("LISTEN_FDS") + ", " + Variable("LISTEN_FDNAMES");
  char** list = nullptr;
  const int count = sd_listen_fds_with_names(1, &list);
  const std::unique_ptr<char*, FreeNames> names(list);
  if (count < 0) {
    return Fail(ErrorCode::kInvalidArgument, "socket activation makes no sense: " + said,
                "start the daemon through microkimid.socket, or without LISTEN_ variables");
  }
  std::vector<Passed> all;
  for (int i = 0; i < count; ++i) {
    all.push_back({UniqueFd(SD_LISTEN_FDS_START + i), names.get()[i]});
  }
  return all;
}

// The only one, or the one with our name.
Result<UniqueFd> Choose(std::vector<Passed> all) {
  if (all.size() == 1) return std::move(all.front().fd);
  UniqueFd chosen;
  std::string names;
  size_t ours = 0;
  for (Passed& one : all) {
    names += (names.empty() ? "" : ", ") + one.name;
    if (one.name != kActivationName) continue;
    ++ours;
    chosen = std::move(one.fd);
  }
  if (ours == 1) return chosen;
  return Fail(ErrorCode::kInvalidArgument,
              "socket activation passed " + std::to_string(all.size()) + " sockets, of which " +
                  std::to_string(ours) + " have the name " + kActivationName + ": " + names,
              "keep one ListenStream= in microkimid.socket");
}

}  // namespace

bool SocketsArePassed() {
  const char* pid = std::getenv("LISTEN_PID");
  return pid != nullptr && pid == std::to_string(getpid()) && std::getenv("LISTEN_FDS") != nullptr;
}

Result<UniqueFd> TakeActivationSocket() {
  auto all = TakeAll();
  if (!all) return Fail(all.error());
  if (all->empty()) return UniqueFd();
  auto fd = Choose(std::move(*all));
  if (!fd) return fd;
  if (sd_is_socket_unix(fd->get(), SOCK_STREAM, 1, nullptr, 0) <= 0 ||
      BoundPath(fd->get()).empty()) {
    return Fail(ErrorCode::kInvalidArgument,
                "socket activation passed something else than a listening AF_UNIX stream socket",
                "use ListenStream= with a path in microkimid.socket");
  }
  fcntl(fd->get(), F_SETFL, fcntl(fd->get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

}  // namespace mk::daemon
