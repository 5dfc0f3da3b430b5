// Long work with a progress line: load, verify, build, bench, absorb, shadow, eval, compare.

#pragma once

#include "client/output.h"
#include "client/session.h"
#include "client/stream.h"

namespace mk::client {

// Sees a request to its end, with a progress line.
protocol::Result<StreamEnd> WatchJob(Session& session, protocol::Args args, Output& output,
                                     bool show_progress);

// The same for one whose end is all that counts. Errors: the daemon's; kCancelled after Ctrl-C.
protocol::Result<protocol::Body> RunJob(Session& session, protocol::Args args, Output& output,
                                        bool show_progress);

template <typename Done>
protocol::Result<Done> RunJobFor(Session& session, protocol::Args args, Output& output,
                                 bool show_progress) {
  protocol::Result<protocol::Body> body = RunJob(session, std::move(args), output, show_progress);
  if (!body) return protocol::Fail(std::move(body.error()));
  if (Done* done = std::get_if<Done>(&*body)) return std::move(*done);
  return protocol::Fail(protocol::ErrorCode::kInternal, "the daemon gave another op's answer");
}

}  // namespace mk::client
