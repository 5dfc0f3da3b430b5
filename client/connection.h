// One connection to the daemon: ZMTP over an AF_UNIX stream. Never blocks but in Connect().

#pragma once

#include <string>
#include <string_view>

#include "client/clock.h"
#include "client/unique_fd.h"
#include "protocol/error.h"
#include "protocol/zmtp.h"

namespace mk::client {

// Why there is no connection: whether starting a daemon would help.
enum class Absence { kNobody, kOther };
struct ConnectFailure {
  protocol::Error error;
  Absence absence = Absence::kOther;
};

// The message of kUnreachable when the other side has ended the connection.
inline constexpr const char* kClosedByDaemon = "the daemon closed the connection";

class Connection {
 public:
  // Connects and queues the ZMTP greeting. No file and no listener, no permission, a peer that does
  // not accept, and a daemon of another user each have their own error (kUnreachable).
  static tl::expected<Connection, ConnectFailure> Connect(const std::string& socket_path,
                                                          Deadline deadline);

  // Queues a message of one frame. It is held until the handshake is done.
  void Queue(std::string_view payload);

  // For poll(): POLLIN, and POLLOUT while something is queued.
  int fd() const { return fd_.get(); }
  short events() const;
  // Sends what can be sent and receives what is there. Errors: kUnreachable when the daemon closed
  // the connection (messages received before can still be taken), kBadRequest when it does not
  // speak the protocol.
  protocol::Status OnReady(short revents);
  // Queues are written at once, without waiting for poll().
  protocol::Status Flush();

  bool NextMessage(std::string& message) { return decoder_.Next(message); }
  // When the last bytes came.
  Deadline last_heard() const { return last_heard_; }

 private:
  explicit Connection(UniqueFd fd) : fd_(std::move(fd)), last_heard_(Clock::now()) {}

  protocol::Status Receive();

  UniqueFd fd_;
  protocol::ZmtpDecoder decoder_;
  std::string held_;  // messages that wait for the handshake
  std::string out_;   // bytes to be sent
  size_t sent_ = 0;   // of out_
  Deadline last_heard_;
};

}  // namespace mk::client
