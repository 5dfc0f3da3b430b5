#include "client/daemon_reload.h"

#include <signal.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;

// A daemon that hangs must not keep anybody from changing a setting.
constexpr milliseconds kPatience{2000};

uint64_t PeerOf(const Connection& connection) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(connection.fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return 0;
  return credentials.pid > 0 ? static_cast<uint64_t>(credentials.pid) : 0;
}

}  // namespace

std::string RunningDaemon::name() const {
  return "microkimid, pid " + std::to_string(status.pid);
}

std::string RunningDaemon::reload_command() const {
  if (!status.journal_unit.empty()) return "systemctl --user reload " + status.journal_unit;
  return "kill -HUP " + std::to_string(status.pid);
}

std::optional<RunningDaemon> FindRunningDaemon(const AccessOptions& access) {
  auto paths = protocol::FindSocketPaths(access.socket);
  if (!paths) return std::nullopt;
  auto session = ConnectSession(*paths);
  if (!session) return std::nullopt;
  auto status = AskFor<protocol::StatusDone>(*session, protocol::StatusArgs{}, kPatience);
  if (!status) return std::nullopt;
  RunningDaemon daemon{std::move(*status), false};
  daemon.can_signal = daemon.status.pid > 1 && PeerOf(session->connection()) == daemon.status.pid;
  return daemon;
}

protocol::Status ReloadDaemon(const RunningDaemon& daemon) {
  const std::string hint = "`" + daemon.reload_command() + "` does";
  if (!daemon.can_signal) {
    return Fail(ErrorCode::kUnsupported, "mk cannot tell " + daemon.name() + " to reload", hint);
  }
  if (::kill(static_cast<pid_t>(daemon.status.pid), SIGHUP) == 0) return {};
  const int error = errno;
  return Fail(error == EPERM ? ErrorCode::kPermissionDenied : ErrorCode::kUnreachable,
              "cannot tell " + daemon.name() + " to reload: " + std::strerror(error), hint);
}

}  // namespace mk::client
