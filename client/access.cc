#include "client/access.h"

#include <poll.h>

#include "client/autostart.h"

namespace mk::client {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::Result;

constexpr milliseconds kConnectTimeout{5'000};
// A daemon that is just leaving takes its socket with it; then another one is started.
constexpr int kAttempts = 3;
constexpr int kLeavingPauseMs = 200;
// One that was told to leave lets what runs end first.
constexpr milliseconds kLeaveTimeout{30'000};

}  // namespace

tl::expected<Session, ConnectFailure> ConnectSession(const protocol::SocketPaths& paths) {
  if (protocol::Status checked = protocol::CheckSocketDirectory(paths.directory); !checked) {
    if (checked.error().code != ErrorCode::kNotFound) {
      return tl::unexpected<ConnectFailure>(
          {{ErrorCode::kUnreachable, checked.error().message, checked.error().hint, {}},
           Absence::kOther});
    }
  }
  auto connection = Connection::Connect(paths.socket, After(kConnectTimeout));
  if (!connection) return tl::unexpected<ConnectFailure>(std::move(connection.error()));
  return Session(std::move(*connection));
}

bool WaitUntilItLeft(Session& session) {
  const Deadline deadline = After(kLeaveTimeout);
  while (Clock::now() < deadline) {
    if (!session.Wait(deadline)) return true;
  }
  return false;
}

Result<Session> OpenSession(const AccessOptions& options) {
  Result<protocol::SocketPaths> paths = protocol::FindSocketPaths(options.socket);
  if (!paths) return Fail(std::move(paths.error()));
  for (int attempt = 1;; ++attempt) {
    auto session = ConnectSession(*paths);
    if (session && !options.autostart) return std::move(*session);
    protocol::Error error;
    if (session) {
      Result<protocol::HelloDone> hello = session->Hello(After(kControlTimeout));
      if (hello) return std::move(*session);
      error = std::move(hello.error());
      if (error.code == ErrorCode::kUnsupportedVersion) return Fail(std::move(error));
      ::poll(nullptr, 0, kLeavingPauseMs);
    } else {
      error = std::move(session.error().error);
      if (session.error().absence != Absence::kNobody || !options.autostart) {
        return Fail(std::move(error));
      }
    }
    if (attempt == kAttempts) return Fail(std::move(error));
    if (protocol::Status started = StartDaemon(*paths, After(kStartTimeout)); !started) {
      return Fail(std::move(started.error()));
    }
  }
}

}  // namespace mk::client
