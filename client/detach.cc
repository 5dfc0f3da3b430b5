#include "client/detach.h"

#include <unistd.h>

#include <cstdio>
#include <string>
#include <utility>

#include "client/json_format.h"
#include "client/printable.h"
#include "client/report.h"
#include "protocol/job_record.h"
#include "protocol/utf8.h"

namespace mk::client {
namespace {

// Saving the record takes as long as the disk does.
constexpr milliseconds kStartTimeout{60'000};

// Records of jobs hold text.
protocol::Status CheckPath(const protocol::JobSpec& spec) {
  for (const std::string& path : protocol::PathsIn(spec)) {
    if (protocol::FindInvalidUtf8(path) == std::string_view::npos) continue;
    return protocol::Fail(
        UsageError("the path is not UTF-8, so a job cannot be recorded: " + Printable(path),
                   "rename the file, or reach it by a link with another name"));
  }
  return {};
}

protocol::Result<protocol::JobsDone> StartAll(const AccessOptions& access,
                                              std::vector<protocol::JobSpec> specs) {
  for (const protocol::JobSpec& spec : specs) {
    if (auto checked = CheckPath(spec); !checked) return protocol::Fail(checked.error());
  }
  auto session = OpenSession(access);
  if (!session) return protocol::Fail(std::move(session.error()));
  protocol::JobsDone started;
  for (protocol::JobSpec& spec : specs) {
    auto done = AskFor<protocol::JobStartDone>(*session, protocol::JobStartArgs{std::move(spec)},
                                               kStartTimeout);
    if (!done) return protocol::Fail(std::move(done.error()));
    started.jobs.push_back(std::move(done->report.job));
  }
  return started;
}

}  // namespace

void AddDetach(CommandLine& line, bool& detach) {
  line.app().add_flag("-d,--detach", detach,
                      "Start it as a job, print the job's id and leave (see `mk jobs`)");
}

int StartDetached(const AccessOptions& access, std::vector<protocol::JobSpec> specs, bool json) {
  Output output(STDOUT_FILENO);
  auto started = StartAll(access, std::move(specs));
  if (!started) {
    if (json) output.Write(JsonLine(ErrorToJson(started.error())));
    FinishOutput(output, protocol::kExitDone);
    return ReportError(started.error());
  }
  bool saved = true;
  for (const protocol::JobStatus& job : started->jobs) {
    if (!json) output.Write(job.id + "\n");
    saved = saved && job.saved;
  }
  if (json) output.Write(JsonLine(ToJson(*started)));
  if (!saved) {
    std::fputs("mk: warning: the job runs, but its record cannot be saved; `mk jobs` tells why\n",
               stderr);
  }
  return FinishOutput(output, protocol::kExitDone);
}

}  // namespace mk::client
