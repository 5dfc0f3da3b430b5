// A request that is answered in many pieces: acknowledgements, signs of life, Ctrl-C, deadlines and
// a reader that leaves.

#pragma once

#include <functional>
#include <optional>

#include "client/output.h"
#include "client/session.h"
#include "client/signals.h"

namespace mk::client {

struct StreamOptions {
  milliseconds timeout{0};  // of the request; the daemon keeps it, the client makes sure. 0: none
  uint32_t window = protocol::kDefaultWindow;
};

struct StreamEnd {
  // The daemon's `done` or `error`; nothing when the client left before.
  std::optional<protocol::Body> body;
  bool interrupted = false;    // Ctrl-C or SIGTERM
  bool output_closed = false;  // the reader of the output has left
};

// Called for every accepted, event and chunk. An error cancels the request and becomes the result.
using OnReply = std::function<protocol::Status(const protocol::Body&)>;

// Sends the request and sees it to its end. Text goes to `output` from `on_reply`; here it is
// written without blocking. What has been written is acknowledged, at least every
// kAckIntervalMs. The first Ctrl-C cancels and waits for the end, the second leaves at once.
protocol::Result<StreamEnd> RunStream(Session& session, protocol::Args args,
                                      const StreamOptions& options, Output& output,
                                      const SignalWatch& signals, const OnReply& on_reply);

}  // namespace mk::client
