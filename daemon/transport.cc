#include "daemon/transport.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace mk::daemon {
namespace {

constexpr const char* kMonitorAddress = "inproc://microkimid-monitor";
// Messages that may wait in one direction of one connection inside libzmq. Outgoing: more than a
// request's window, so that a full pipe means a client that does not read.
constexpr int kReceiveHighWater = 256;
constexpr int kSendHighWater = 4096;
// A peer that connects and does not complete the handshake is dropped after this.
constexpr int kHandshakeMilliseconds = 2000;
// Time for last messages when the daemon leaves; a client that does not read costs no more.
constexpr int kLastLingerMilliseconds = 2000;

}  // namespace

Transport::Transport(Metrics& metrics)
    : metrics_(metrics),
      context_(1),
      router_(context_, zmq::socket_type::router),
      monitor_(context_, zmq::socket_type::pair) {}

Transport::~Transport() {
  zmq_socket_monitor(router_.handle(), nullptr, 0);
  router_.close();
  monitor_.close();
}

Result<std::unique_ptr<Transport>> Transport::Create(UniqueFd listening, const std::string& path,
                                                     size_t max_message, Metrics& metrics) {
  try {
    std::unique_ptr<Transport> transport(new Transport(metrics));
    zmq::socket_t& router = transport->router_;
    router.set(zmq::sockopt::linger, 0);
    router.set(zmq::sockopt::router_mandatory, true);
    router.set(zmq::sockopt::maxmsgsize, static_cast<int64_t>(max_message));
    router.set(zmq::sockopt::handshake_ivl, kHandshakeMilliseconds);
    router.set(zmq::sockopt::rcvhwm, kReceiveHighWater);
    router.set(zmq::sockopt::sndhwm, kSendHighWater);
    // The directory and the mode of the socket keep others out; this is the second wall: libzmq
    // asks the kernel for the peer's uid (SO_PEERCRED) and drops those who are not listed.
    for (const uid_t uid : {geteuid(), uid_t{0}}) {
      if (zmq_setsockopt(router.handle(), ZMQ_IPC_FILTER_UID, &uid, sizeof uid) != 0) {
        return Fail(ErrorCode::kIo,
                    std::string("libzmq has no uid filter for ipc: ") + zmq_strerror(zmq_errno()));
      }
    }
    if (zmq_socket_monitor(router.handle(), kMonitorAddress,
                           ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CLOSED) != 0) {
      return Fail(ErrorCode::kIo,
                  std::string("cannot watch the socket: ") + zmq_strerror(zmq_errno()));
    }
    transport->monitor_.set(zmq::sockopt::linger, 0);
    transport->monitor_.set(zmq::sockopt::rcvhwm, 0);
    transport->monitor_.connect(kMonitorAddress);
    if (auto status = transport->AddListener(std::move(listening), path); !status) {
      return Fail(status.error());
    }
    return transport;
  } catch (const zmq::error_t& error) {
    return Fail(ErrorCode::kIo, std::string("cannot set up the socket: ") + error.what());
  }
}

Status Transport::AddListener(UniqueFd listening, const std::string& path) {
  DrainMonitor();
  try {
    if (connections_ == 0 && listeners_ > 0) {
      // Nobody came through the old ones, so nobody loses by their end; with connections they stay,
      // because libzmq ends a listener's connections with it.
      zmq_unbind(router_.handle(), ("ipc://" + path).c_str());
      listeners_ = 0;
    }
    router_.set(zmq::sockopt::use_fd, listening.get());
    router_.bind("ipc://" + path);
  } catch (const zmq::error_t& error) {
    return Fail(ErrorCode::kIo, "cannot serve on " + path + ": " + error.what());
  }
  [[maybe_unused]] const int owned_by_libzmq = listening.Release();
  ++listeners_;
  return {};
}

bool Transport::Receive(Incoming& incoming) {
  try {
    zmq::message_t peer;
    if (!router_.recv(peer, zmq::recv_flags::dontwait)) return false;
    incoming.peer.assign(static_cast<const char*>(peer.data()), peer.size());
    incoming.payload.rebuild();
    incoming.single_frame = peer.more();
    incoming.connection = -1;
    bool more = peer.more();
    for (size_t frame = 0; more; ++frame) {
      zmq::message_t part;
      if (!router_.recv(part, zmq::recv_flags::dontwait)) break;
      more = part.more();
      if (frame == 0) {
        incoming.connection = zmq_msg_get(part.handle(), ZMQ_SRCFD);
        incoming.payload = std::move(part);
      } else {
        incoming.single_frame = false;
      }
    }
    return true;
  } catch (const zmq::error_t&) {
    return false;  // EINTR: there will be another round
  }
}

SendResult Transport::Send(const std::string& peer, std::string_view payload) {
  // A signal may interrupt; nothing was sent then.
  int rc = -1;
  do {
    rc = zmq_send(router_.handle(), peer.data(), peer.size(), ZMQ_SNDMORE | ZMQ_DONTWAIT);
  } while (rc < 0 && zmq_errno() == EINTR);
  if (rc < 0) {
    if (zmq_errno() == EAGAIN) {
      metrics_.Add(Counter::kSendsDeferred);
      return SendResult::kFull;
    }
    return SendResult::kGone;
  }
  do {
    rc = zmq_send(router_.handle(), payload.data(), payload.size(), ZMQ_DONTWAIT);
  } while (rc < 0 && zmq_errno() == EINTR);
  if (rc < 0) return SendResult::kGone;
  metrics_.Add(Counter::kMessagesSent);
  metrics_.Add(Counter::kSentBytes, payload.size());
  return SendResult::kSent;
}

void Transport::LingerOnClose() {
  const int milliseconds = kLastLingerMilliseconds;
  zmq_setsockopt(router_.handle(), ZMQ_LINGER, &milliseconds, sizeof milliseconds);
}

void Transport::DrainMonitor() {
  zmq::message_t event;
  zmq::message_t address;
  try {
    while (monitor_.recv(event, zmq::recv_flags::dontwait)) {
      if (event.more() && !monitor_.recv(address, zmq::recv_flags::none)) break;
      // The event's number (16 bits), then its value: the descriptor.
      uint16_t what = 0;
      int32_t descriptor = -1;
      if (event.size() < sizeof what + sizeof descriptor) continue;
      std::memcpy(&what, event.data(), sizeof what);
      std::memcpy(&descriptor, event.data<char>() + sizeof what, sizeof descriptor);
      if (what == ZMQ_EVENT_ACCEPTED) {
        ++connections_;
        metrics_.Add(Counter::kConnectionsAccepted);
      } else if (what == ZMQ_EVENT_DISCONNECTED && connections_ > 0) {
        --connections_;
        metrics_.Add(Counter::kConnectionsClosed);
        closed_.push_back(descriptor);
      }
    }
  } catch (const zmq::error_t&) {
    return;  // EINTR: there will be another round
  }
}

}  // namespace mk::daemon
