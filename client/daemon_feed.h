// DaemonFeed: what a daemon does, asked for again and again, without ever waiting for it.
//
// It never starts a daemon. When none is there, or the one there was has gone, it connects anew
// with the next question.

#pragma once

#include <optional>
#include <vector>

#include "client/session.h"
#include "protocol/socket_path.h"

namespace mk::client {

struct DaemonPicture {
  protocol::StatusDone status;
  std::vector<protocol::MetricFamily> metrics;
  Deadline taken;  // when it arrived
};

class DaemonFeed {
 public:
  explicit DaemonFeed(protocol::SocketPaths paths) : paths_(std::move(paths)) {}

  // Asks, unless an answer is still under way.
  void Ask();

  // For poll(): the connection, or -1.
  int fd() { return session_ ? session_->connection().fd() : -1; }
  short events() { return session_ ? session_->connection().events() : short{0}; }
  // Takes what came.
  void OnReady(short revents);

  // The answer to the last question, once.
  std::optional<DaemonPicture> Take();
  // Why there is none; gone with the next answer. Also when a daemon does not answer for long.
  std::optional<protocol::Error> trouble() const;

 private:
  void Fail(protocol::Error error);
  protocol::Status Receive();

  protocol::SocketPaths paths_;
  std::optional<Session> session_;
  std::optional<protocol::Error> trouble_;
  Deadline asked_;
  bool waiting_ = false;
  std::optional<protocol::StatusDone> status_;
  std::optional<protocol::MetricsDone> metrics_;
};

}  // namespace mk::client
