// `mk map`

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "client/commands.h"
#include "client/input.h"
#include "client/map_runner.h"
#include "client/report.h"
#include "client/unique_fd.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Result;

Result<UniqueFd> OpenInput(const std::string& path) {
  if (path == "-") return UniqueFd();
  return OpenForReading(path);
}

// Bytes that are still to be read; 0: not known.
uint64_t BytesOf(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  const off_t at = ::lseek(fd, 0, SEEK_CUR);
  return at >= 0 && at < info.st_size ? static_cast<uint64_t>(info.st_size - at) : 0;
}

Result<size_t> JobsOf(const MapSettings& settings, Session& session) {
  if (settings.jobs > 0) return static_cast<size_t>(settings.jobs);
  auto status = AskFor<protocol::StatusDone>(session, protocol::StatusArgs{});
  if (!status) return Fail(std::move(status.error()));
  return static_cast<size_t>(std::max<uint64_t>(1, status->max_batch));
}

int CodeOf(const MapEnd& end) {
  if (end.interrupted) return protocol::kExitInterrupted;
  if (end.counts.failed > 0) return protocol::kExitFailed;
  return end.counts.degraded > 0 ? protocol::kExitDegraded : protocol::kExitDone;
}

int EndOfMap(const MapSettings& settings, const MapEnd& end, const MapProgress& progress,
             Output& output) {
  if (end.output_closed) {
    if (output.closed()) return FinishOutput(output, protocol::kExitFailed);
    LeaveOnClosedPipe();
  }
  const int code = FinishOutput(output, CodeOf(end));
  if (end.fatal) {
    protocol::Error error = *end.fatal;
    if (end.counts.ended() > 0) {
      error.message += " (after " + std::to_string(end.counts.ended()) + " items)";
    }
    return ReportError(error);
  }
  if (end.counts.failed > 0) {
    std::fputs(("mk: " + std::to_string(end.counts.failed) + " of " +
                std::to_string(end.counts.read) + " items failed\n")
                   .c_str(),
               stderr);
  }
  if (settings.stats || progress.enabled()) {
    std::fputs(MapSummaryText(end.counts, progress.seconds()).c_str(), stderr);
  }
  return code;
}

}  // namespace

int MapCommand(const Command& command, int argc, char** argv) {
  MapSettings settings;
  if (auto code = ParseMapSettings(command, argc, argv, settings)) return *code;
  auto input = OpenInput(settings.file);
  if (!input) return ReportError(input.error());
  auto session = OpenSession(settings.access);
  if (!session) return ReportError(session.error());
  auto jobs = JobsOf(settings, *session);
  if (!jobs) return ReportError(jobs.error());

  const int fd = *input ? input->get() : STDIN_FILENO;
  RecordReader reader(fd, settings.file == "-" ? "standard input" : settings.file,
                      SeparatorOf(settings.input), MostBytesOf(settings.input));
  Output output(STDOUT_FILENO);
  MapProgress progress(IsFancyTerminal(STDERR_FILENO));
  MapEnd end;
  {
    const SignalWatch signals;
    end = MapRunner(settings, *jobs, reader, BytesOf(fd), std::move(*session), output, signals)
              .Run(progress);
  }
  // What is left is written without the watch: Ctrl-C ends mk when nobody reads it.
  return EndOfMap(settings, end, progress, output);
}

}  // namespace mk::client
