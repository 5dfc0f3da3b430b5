// `mk jobs`

#include <unistd.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/commands.h"
#include "client/eval_text.h"
#include "client/job.h"
#include "client/job_text.h"
#include "client/json_format.h"
#include "client/printable.h"
#include "client/report.h"

namespace mk::client {
namespace {

using protocol::Fail;
using protocol::Result;

struct JobsSettings {
  AccessOptions access;
  std::string action = "list";
  std::vector<std::string> ids;
  bool done = false;  // rm: all that have ended
  bool json = false;
  bool only_ids = false;  // list: for completions
};

std::optional<int> CheckIds(const JobsSettings& settings) {
  const bool list = settings.action == "list";
  const bool remove = settings.action == "rm";
  if (settings.done && !remove) {
    return ReportUsage("--done goes with rm only", "for example: mk jobs rm --done");
  }
  if (list && !settings.ids.empty()) {
    return ReportUsage("list takes no id", "`mk jobs show ID` shows one job");
  }
  if (!list && settings.only_ids) {
    return ReportUsage("--ids goes with list only", "leave it out");
  }
  if (remove && settings.done != settings.ids.empty()) {
    return ReportUsage("rm takes ids or --done", "for example: mk jobs rm --done");
  }
  if (!list && !remove && settings.ids.size() != 1) {
    return ReportUsage(settings.action + " takes the id of one job", "`mk jobs` lists them");
  }
  for (const std::string& id : settings.ids) {
    if (!protocol::IsJobId(id)) {
      return ReportError({protocol::ErrorCode::kNotFound,
                          "\"" + Printable(id) + "\" is no id of a job",
                          "`mk jobs` lists them",
                          {}});
    }
  }
  return std::nullopt;
}

std::optional<int> ParseJobs(const Command& command, int argc, char** argv,
                             JobsSettings& settings) {
  CommandLine line(command);
  CLI::App& app = line.app();
  app.add_option("ACTION", settings.action,
                 "What to do (default: list); attach shows the progress to the end")
      ->check(OneOf({"list", "show", "attach", "cancel", "resume", "rm"}));
  app.add_option("ID", settings.ids, "Job; rm takes several");
  app.add_flag("--done", settings.done, "With rm: all that have ended");
  app.add_flag("--json", settings.json, "One JSON object instead of text");
  app.add_flag("--ids", settings.only_ids, "With list: only the ids, one per line")
      ->excludes("--json");
  line.AddAccess(settings.access, false);
  if (auto code = line.Parse(argc, argv)) return code;
  return CheckIds(settings);
}

int Fails(const protocol::Error& error, bool json, Output& output) {
  if (json) output.Write(JsonLine(ErrorToJson(error)));
  FinishOutput(output, protocol::kExitDone);
  return ReportError(error);
}

// Asks once and prints.
template <typename Done, typename Render>
int Tell(Session& session, protocol::Args args, bool json, const Render& render) {
  Output output(STDOUT_FILENO);
  auto done = AskFor<Done>(session, std::move(args));
  if (!done) return Fails(done.error(), json, output);
  output.Write(json ? JsonLine(ToJson(*done)) : render(*done));
  return FinishOutput(output, protocol::kExitDone);
}

std::string IdsText(const protocol::JobsDone& done) {
  std::string text;
  for (const protocol::JobStatus& job : done.jobs) text += job.id + "\n";
  return text;
}

// The exit code of a job that has ended is that of its command without --detach.
int EndOf(const protocol::JobReport& report, bool json, Output& output) {
  output.Write(json ? JsonLine(ToJson(report)) : ResultText(report.result));
  const int written = FinishOutput(output, protocol::kExitDone);
  if (written != protocol::kExitDone) return written;
  if (report.result.verify && !report.result.verify->ok) {
    return ReportError(NotSound(*report.result.verify));
  }
  if (!report.job.error) {
    return IsDegraded(report.result) ? protocol::kExitDegraded : protocol::kExitDone;
  }
  const protocol::JobError& error = *report.job.error;
  const auto code = protocol::ErrorCodeFromName(error.code);
  return ReportError({code.value_or(protocol::ErrorCode::kInternal),
                      "job " + report.job.id + ": " + error.message,
                      error.hint,
                      {}});
}

int Attach(Session& session, const JobsSettings& settings) {
  Output output(STDOUT_FILENO);
  const std::string& id = settings.ids[0];
  auto end = WatchJob(session, protocol::JobAttachArgs{id}, output, !settings.json);
  if (!end) return Fails(end.error(), settings.json, output);
  if (end->body) {
    if (const auto* done = std::get_if<protocol::JobAttachDone>(&*end->body)) {
      return EndOf(done->report, settings.json, output);
    }
  }
  // Ctrl-C ends the watching, not the job.
  if (end->interrupted) {
    return Fails({protocol::ErrorCode::kCancelled,
                  "detached; job " + id + " goes on",
                  "`mk jobs attach " + id + "` shows it again, `mk jobs cancel " + id + "` ends it",
                  {}},
                 settings.json, output);
  }
  if (const auto* error = std::get_if<protocol::Error>(&*end->body)) {
    return Fails(*error, settings.json, output);
  }
  return Fails({protocol::ErrorCode::kInternal, "the daemon gave another op's answer", {}, {}},
               settings.json, output);
}

// Its end is near, but a job takes a moment to see that it was cancelled.
std::string CancelText(const protocol::JobCancelDone& done) {
  const protocol::JobStatus& job = done.report.job;
  return "job " + job.id + (job.state == "cancelled" ? " is cancelled\n" : " is being cancelled\n");
}

std::string ResumeText(const protocol::JobResumeDone& done) {
  const protocol::JobStatus& job = done.report.job;
  const bool goes_on = job.resumable && job.kept > 0;
  return "job " + job.id + " is " + job.state +
         (goes_on ? ", from " + JobProgressText(job) + " on\n" : ", from the start\n");
}

int Do(Session& session, const JobsSettings& settings) {
  const bool json = settings.json;
  if (settings.action == "list") {
    return Tell<protocol::JobsDone>(session, protocol::JobsArgs{}, json,
                                    settings.only_ids ? IdsText : JobsText);
  }
  if (settings.action == "rm") {
    return Tell<protocol::JobRemoveDone>(session,
                                         protocol::JobRemoveArgs{settings.ids, settings.done}, json,
                                         [](const protocol::JobRemoveDone& done) {
                                           return "removed " + std::to_string(done.removed) +
                                                  (done.removed == 1 ? " job\n" : " jobs\n");
                                         });
  }
  const std::string& id = settings.ids[0];
  if (settings.action == "show") {
    return Tell<protocol::JobShowDone>(
        session, protocol::JobShowArgs{id}, json,
        [](const protocol::JobShowDone& done) { return JobText(done.report); });
  }
  if (settings.action == "cancel") {
    return Tell<protocol::JobCancelDone>(session, protocol::JobCancelArgs{id}, json, CancelText);
  }
  if (settings.action == "resume") {
    return Tell<protocol::JobResumeDone>(session, protocol::JobResumeArgs{id}, json, ResumeText);
  }
  return Attach(session, settings);
}

}  // namespace

int JobsCommand(const Command& command, int argc, char** argv) {
  JobsSettings settings;
  if (auto code = ParseJobs(command, argc, argv, settings)) return *code;
  // Looking never starts a daemon; a job that is to go on needs one.
  settings.access.autostart = settings.action == "resume";
  auto session = OpenSession(settings.access);
  if (!session) {
    Output output(STDOUT_FILENO);
    return Fails(session.error(), settings.json, output);
  }
  return Do(*session, settings);
}

}  // namespace mk::client
