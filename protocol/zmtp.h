// ZMTP 3.1, the wire protocol of ZeroMQ, as far as one client connection needs it: NULL mechanism,
// a DEALER that talks to a ROUTER. (mk speaks it itself because loading libzmq takes longer than
// everything else that a short call does.)
//
// A connection begins with a greeting of 64 bytes from each side, then each sends the command
// READY; after that come messages of one or more frames, and PING and PONG commands. A frame is
//
//   flags (1 byte: 1 more frames follow, 2 long, 4 command), size (1 byte; long: 8, big-endian),
//   body
//
// The codec is pure bytes in, events out; it does no I/O. The peer is not trusted: sizes are
// checked before memory is taken, and every violation ends the connection with an error.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "protocol/error.h"
#include "protocol/limits.h"

namespace mk::protocol {

// Greeting and READY of a DEALER, to be sent first. The peer's need not be awaited for that, but
// messages must wait until it has sent its READY: libzmq takes one that comes earlier for a broken
// handshake.
std::string ZmtpClientHello();

// A message of one frame.
std::string ZmtpMessage(std::string_view payload);
// The same without the copy of a large payload: send the header, then the payload.
std::string ZmtpMessageHeader(size_t payload_bytes);

// Takes the peer's bytes in pieces of any size.
class ZmtpDecoder {
 public:
  explicit ZmtpDecoder(size_t max_message = kLimits.message_bytes) : max_message_(max_message) {}

  // Errors: kBadRequest when the peer does not speak ZMTP 3 with the NULL mechanism, is no ROUTER,
  // DEALER or REP, breaks the framing, or sends a message over the limit. After an error nothing
  // more is taken.
  Status Feed(std::string_view bytes);

  // The next complete message: its frames put together (the daemon sends one). False: none yet.
  bool Next(std::string& message);
  // Bytes to send back (PONGs); empty when there are none.
  std::string TakeReplies();
  // The peer's READY has come.
  bool ready() const { return stage_ == Stage::kTraffic; }

 private:
  enum class Stage { kGreeting, kHandshake, kTraffic, kFailed };

  Status Step(bool& advanced);
  Status ReadGreeting(bool& advanced);
  Status ReadFrame(bool& advanced);
  Status TakeFrame(uint8_t flags, std::string_view body);
  Status TakeCommand(std::string_view body);
  Status TakeReady(std::string_view metadata);
  Status TakePing(std::string_view body);
  Status Broken(std::string why);
  std::string_view Rest() const { return std::string_view(buffer_).substr(consumed_); }

  const size_t max_message_;
  Stage stage_ = Stage::kGreeting;
  std::string buffer_;   // received
  size_t consumed_ = 0;  // of buffer_
  std::string partial_;  // frames of a message whose last has not come
  bool in_message_ = false;
  std::deque<std::string> messages_;
  std::string replies_;
};

}  // namespace mk::protocol
