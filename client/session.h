// Requests and replies over one connection.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/clock.h"
#include "client/connection.h"
#include "protocol/messages.h"

namespace mk::client {

// How long a daemon that is there may take to answer what needs no work.
inline constexpr milliseconds kControlTimeout{10'000};

class Session {
 public:
  // Takes over a connection and queues hello.
  explicit Session(Connection connection);

  // Sends a request at once; returns its id. The hello need not have been answered.
  protocol::Result<uint64_t> Send(protocol::Args args, uint32_t version = protocol::kProtocolMax);
  // A reply that is there already. Errors: those of hello (kUnsupportedVersion), and kBadRequest
  // for what cannot be understood.
  protocol::Result<std::optional<protocol::Reply>> Take();
  // Waits for the next reply. Nothing: the deadline passed.
  protocol::Result<std::optional<protocol::Reply>> Wait(Deadline deadline);
  // Waits for the daemon's hello.
  protocol::Result<protocol::HelloDone> Hello(Deadline deadline);

  Connection& connection() { return connection_; }

 private:
  std::optional<protocol::Op> OpOfId(uint64_t id) const;

  Connection connection_;
  uint64_t next_id_ = 1;
  uint64_t hello_id_ = 0;
  std::vector<std::pair<uint64_t, protocol::Op>> open_;
  std::optional<protocol::HelloDone> hello_;
};

// One request that is answered by `done` or `error` alone. Errors: the daemon's, and kUnreachable
// when it does not answer in time.
protocol::Result<protocol::Body> Ask(Session& session, protocol::Args args, Deadline deadline);

template <typename Done>
protocol::Result<Done> AskFor(Session& session, protocol::Args args,
                              milliseconds timeout = kControlTimeout) {
  protocol::Result<protocol::Body> body = Ask(session, std::move(args), After(timeout));
  if (!body) return protocol::Fail(std::move(body.error()));
  if (Done* done = std::get_if<Done>(&*body)) return std::move(*done);
  return protocol::Fail(protocol::ErrorCode::kInternal, "the daemon gave another op's answer");
}

}  // namespace mk::client
