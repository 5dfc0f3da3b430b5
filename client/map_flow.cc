#include "client/map_flow.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Result;

Result<size_t> JobsOf(const MapFlow& flow, Session& session) {
  if (flow.alone) return size_t{1};
  if (flow.jobs > 0) return static_cast<size_t>(flow.jobs);
  auto status = AskFor<protocol::StatusDone>(session, protocol::StatusArgs{});
  if (!status) return Fail(std::move(status.error()));
  return static_cast<size_t>(std::max<uint64_t>(1, status->max_batch));
}

int CodeOf(const MapEnd& end) {
  if (end.interrupted) return protocol::kExitInterrupted;
  if (end.counts.failed > 0) return protocol::kExitFailed;
  return end.counts.degraded > 0 ? protocol::kExitDegraded : protocol::kExitDone;
}

int EndOfMap(const MapFlow& flow, MapWork& work, const MapEnd& end, const MapProgress& progress,
             Output& output) {
  if (end.output_closed) {
    if (output.closed()) return FinishOutput(output, protocol::kExitFailed);
    LeaveOnClosedPipe();
  }
  if (!end.fatal && !end.interrupted) output.Write(work.Totals());
  const int code = FinishOutput(output, CodeOf(end));
  if (end.fatal) {
    protocol::Error error = *end.fatal;
    if (end.counts.ended() > 0 && !flow.alone) {
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
  if (flow.stats || progress.enabled()) {
    std::fputs(MapSummaryText(end.counts, progress.seconds()).c_str(), stderr);
  }
  return code;
}

}  // namespace

uint64_t BytesLeft(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) return 0;
  const off_t at = ::lseek(fd, 0, SEEK_CUR);
  return at >= 0 && at < info.st_size ? static_cast<uint64_t>(info.st_size - at) : 0;
}

int RunMap(const MapFlow& flow, MapWork& work, RecordReader& reader, uint64_t input_bytes) {
  auto session = OpenSession(flow.access);
  if (!session) return ReportError(session.error());
  auto jobs = JobsOf(flow, *session);
  if (!jobs) return ReportError(jobs.error());
  Output output(STDOUT_FILENO);
  MapProgress progress(IsFancyTerminal(STDERR_FILENO));
  MapEnd end;
  {
    const SignalWatch signals;
    end = MapRunner(flow, *jobs, work, reader, input_bytes, std::move(*session), output, signals)
              .Run(progress);
  }
  // What is left is written without the watch: Ctrl-C ends mk when nobody reads it.
  return EndOfMap(flow, work, end, progress, output);
}

}  // namespace mk::client
