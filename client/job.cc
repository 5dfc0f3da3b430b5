#include "client/job.h"

#include <unistd.h>

#include "client/progress.h"
#include "client/report.h"

namespace mk::client {

protocol::Result<StreamEnd> WatchJob(Session& session, protocol::Args args, Output& output,
                                     bool show_progress) {
  ProgressLine progress(show_progress && IsFancyTerminal(STDERR_FILENO));
  const SignalWatch signals;
  auto end =
      RunStream(session, std::move(args), {}, output, signals, [&](const protocol::Body& body) {
        if (const auto* step = std::get_if<protocol::Progress>(&body)) {
          progress.Show(*step);
        }
        return protocol::Status();
      });
  progress.Clear();
  if (end && end->output_closed) LeaveOnClosedPipe();
  return end;
}

protocol::Result<protocol::Body> RunJob(Session& session, protocol::Args args, Output& output,
                                        bool show_progress) {
  auto end = WatchJob(session, std::move(args), output, show_progress);
  if (!end) return protocol::Fail(std::move(end.error()));
  if (!end->body) return protocol::Fail(protocol::ErrorCode::kCancelled, "interrupted");
  if (auto* error = std::get_if<protocol::Error>(&*end->body)) {
    return protocol::Fail(std::move(*error));
  }
  return std::move(*end->body);
}

}  // namespace mk::client
