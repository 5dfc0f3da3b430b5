// The ROUTER socket: messages in, messages out, never waiting.
//
// One Transport belongs to the I/O thread. Sends report a peer that is gone and a pipe that is full
// (ZMQ_ROUTER_MANDATORY) instead of dropping in silence. A socket monitor counts connections.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <zmq.hpp>

#include "daemon/metrics.h"
#include "engine/base/result.h"
#include "engine/base/unique_fd.h"

namespace mk::daemon {

struct Incoming {
  std::string peer;          // routing id, given by libzmq
  zmq::message_t payload;    // first frame
  bool single_frame = true;  // false: there were none or several, and all but the first are dropped
  int connection = -1;       // the descriptor that it came through; -1: not known
};

enum class SendResult { kSent, kFull, kGone };

class Transport {
 public:
  // Takes over a listening AF_UNIX socket bound to `path`. `max_message` in bytes: a peer that
  // sends more is cut off. Errors: kIo.
  static Result<std::unique_ptr<Transport>> Create(UniqueFd listening, const std::string& path,
                                                   size_t max_message, Metrics& metrics);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Listens on one more socket; the connections that exist stay.
  Status AddListener(UniqueFd listening, const std::string& path);

  // The next message, if one is there.
  bool Receive(Incoming& incoming);
  SendResult Send(const std::string& peer, std::string_view payload);
  // What is on its way when the transport is destroyed gets a moment to leave.
  void LingerOnClose();
  // Counts what the monitor saw since the last call.
  void DrainMonitor();
  // Descriptors of connections that DrainMonitor() saw end since the last call. New connections may
  // have the same numbers by now.
  std::vector<int> TakeClosed() { return std::exchange(closed_, {}); }
  size_t connections() const { return connections_; }

  // For zmq_poll.
  void* router() { return router_.handle(); }
  void* monitor() { return monitor_.handle(); }

 private:
  explicit Transport(Metrics& metrics);

  Metrics& metrics_;
  zmq::context_t context_;
  zmq::socket_t router_;
  zmq::socket_t monitor_;
  size_t connections_ = 0;
  std::vector<int> closed_;
  unsigned listeners_ = 0;
};

}  // namespace mk::daemon
