// `mk run`

#include <unistd.h>

#include "client/commands.h"
#include "client/report.h"
#include "client/run_output.h"
#include "client/run_settings.h"
#include "client/stream.h"

namespace mk::client {
namespace {

// Daemons that a run is given to, one after the other, before it is told that they leave. A script
// may restart them faster than a model loads.
constexpr int kAttempts = 20;

// Its daemon left before it had begun: another one will do it. Nothing has been shown yet. `heard`:
// the daemon has said something; one that dies with a run is not to be given it again.
bool CameTooLate(const protocol::Result<StreamEnd>& end, bool heard) {
  if (!end) return !heard && end.error().message == kClosedByDaemon;
  if (end->interrupted || end->output_closed || !end->body) return false;
  const auto* error = std::get_if<protocol::Error>(&*end->body);
  return error != nullptr && error->code == protocol::ErrorCode::kShuttingDown;
}

int EndOfRun(protocol::Result<StreamEnd>& end, std::unique_ptr<RunOutput>& run_output,
             Output& output) {
  if (!end) return run_output->Fail(end.error());
  if (end->output_closed) {
    run_output.reset();  // removes unfinished files, which the signal would not
    if (output.closed()) return FinishOutput(output, protocol::kExitFailed);
    LeaveOnClosedPipe();
  }
  int code = protocol::kExitInterrupted;
  if (end->body) {
    if (const auto* done = std::get_if<protocol::RunDone>(&*end->body)) {
      code = run_output->Finish(*done);
    } else if (const auto* error = std::get_if<protocol::Error>(&*end->body)) {
      const bool expected = end->interrupted && error->code == protocol::ErrorCode::kCancelled;
      if (!expected) code = run_output->Fail(*error);
    } else {
      code = run_output->Fail(
          {protocol::ErrorCode::kInternal, "the daemon gave another op's answer", {}, {}});
    }
  }
  return end->interrupted ? protocol::kExitInterrupted : code;
}

}  // namespace

int RunCommand(const Command& command, int argc, char** argv) {
  RunSettings options;
  if (auto code = ParseRunSettings(command, argc, argv, options)) return *code;
  Output output(STDOUT_FILENO);
  auto run_output = RunOutput::Create(options, output);
  if (!run_output) return ReportError(run_output.error());
  StreamOptions stream;
  stream.timeout = milliseconds(options.args.timeout_ms);
  stream.window = options.args.window;
  for (int attempt = 1;; ++attempt) {
    auto session = OpenSession(options.access);
    if (!session) return (*run_output)->Fail(session.error());
    bool heard = false;
    bool begun = false;
    auto end = [&] {
      // What is left is written without the watch: Ctrl-C ends mk when nobody reads it.
      const SignalWatch signals;
      return RunStream(*session, options.args, stream, output, signals,
                       [&](const protocol::Body& body) {
                         heard = true;
                         begun = begun || protocol::TypeOf(body) == protocol::ReplyType::kChunk;
                         return (*run_output)->Take(body);
                       });
    }();
    const bool again = options.access.autostart && !begun && attempt < kAttempts;
    if (!again || !CameTooLate(end, heard) || !WaitUntilItLeft(*session)) {
      return EndOfRun(end, *run_output, output);
    }
  }
}

}  // namespace mk::client
