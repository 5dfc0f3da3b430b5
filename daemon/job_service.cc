#include "daemon/job_service.h"

#include <algorithm>
#include <utility>

#include "daemon/errors.h"
#include "engine/build/build_model.h"
#include "engine/format/verify.h"

namespace mk::daemon {
namespace {

protocol::VerifyDone ToWire(const std::string& path, const VerifyReport& report) {
  protocol::VerifyDone done;
  done.path = path;
  done.ok = report.ok();
  done.file_bytes = report.file_bytes;
  done.tensors = report.tensors;
  done.values_checked = report.values_checked;
  done.xxh3_128 = report.xxh3_128;
  done.content_sha256 = report.content_sha256;
  done.digest_recorded = report.digest_recorded;
  done.problems_total = report.problems_total;
  for (const VerifyProblem& problem : report.problems) {
    done.problems.push_back({problem.tensor, problem.message, problem.count});
  }
  done.warnings = report.warnings;
  return done;
}

protocol::BuildDone ToWire(const BuildReport& report, bool written) {
  protocol::BuildDone done;
  done.path = report.path;
  done.written = written;
  done.tensors = report.tensors;
  done.parameters = report.parameters;
  done.file_bytes = report.file_bytes;
  done.expert_bytes = report.expert_bytes;
  done.spine_bytes = report.spine_bytes;
  done.seconds = report.seconds;
  return done;
}

protocol::Result<BuildOptions> OptionsOf(const protocol::BuildArgs& args, int threads) {
  BuildOptions options;
  options.arch = args.arch;
  options.preset = args.preset;
  options.path = args.out;
  options.seed = args.seed;
  options.threads = args.threads > 0 ? static_cast<int>(args.threads) : threads;
  options.dry_run = args.dry_run;
  options.force = args.force;
  for (const std::string& pair : args.set) {
    const size_t equals = pair.find('=');
    if (equals == 0 || equals == std::string::npos) {
      return protocol::Fail(protocol::ErrorCode::kBadRequest,
                            "not a setting of the form key=value: " + pair,
                            "for example --set hidden=96");
    }
    options.overrides.emplace_back(pair.substr(0, equals), pair.substr(equals + 1));
  }
  // The protocol admits these three.
  if (args.expert_align == "64") options.align = ExpertAlign::k64;
  if (args.expert_align == "4096") options.align = ExpertAlign::k4096;
  return options;
}

}  // namespace

void JobService::HandleVerify(ClientRequest& request) {
  const auto& args = std::get<protocol::VerifyArgs>(request.args);
  auto ref = ResolveSelector(core_, {args.model, {}, {}});
  if (!ref) return core_.clients.Finish(request, ref.error());
  request.model_path = ref->path;
  auto work = [path = ref->path](const Report& report) -> protocol::Result<protocol::Body> {
    VerifyOptions options;
    options.progress = [&report](uint64_t done, uint64_t total) {
      return report(static_cast<double>(done) / static_cast<double>(total));
    };
    auto verified = VerifyFile(path, options);
    if (!verified) return protocol::Fail(ToModelError(verified.error()));
    return ToWire(path, *verified);
  };
  const auto opened = OpenForReading(ref->path);
  const uint64_t bytes = opened ? opened->identity.size : 0;
  Post(request, {"verify", 0, bytes, "bytes"}, std::move(work));
}

void JobService::HandleBuild(ClientRequest& request) {
  const auto& args = std::get<protocol::BuildArgs>(request.args);
  auto options = OptionsOf(args, core_.threads);
  if (!options) return core_.clients.Finish(request, options.error());
  request.model_path = args.out;
  auto work = [options = *options](const Report& report) -> protocol::Result<protocol::Body> {
    auto built = BuildModel(options, report);
    if (!built) return protocol::Fail(ToProtocol(built.error()));
    return ToWire(*built, !options.dry_run);
  };
  Post(request, {"build", 0, 100, "percent"}, std::move(work));
}

void JobService::Post(ClientRequest& request, protocol::Progress progress, Work work) {
  core_.clients.Send(request, protocol::Accepted{core_.jobs.waiting()});
  auto task = [key = request.key, control = request.control, progress = std::move(progress),
               work = std::move(work), &events = core_.events] {
    auto last = Clock::time_point{};
    const Report report = [&](double fraction) {
      const auto now = Clock::now();
      if (now - last >= std::chrono::milliseconds(200)) {
        last = now;
        protocol::Progress event = progress;
        event.done = static_cast<uint64_t>(static_cast<double>(event.total) *
                                           std::clamp(fraction, 0.0, 1.0));
        events.Push(WorkProgress{key, std::move(event)});
      }
      return !control->cancelled.load();
    };
    if (!report(0)) {
      events.Push(WorkDone{key, protocol::Fail(protocol::ErrorCode::kCancelled, "cancelled")});
      return;
    }
    events.Push(WorkDone{key, work(report)});
  };
  if (!core_.jobs.Post(std::move(task))) {
    return core_.clients.Finish(
        request, protocol::Error{protocol::ErrorCode::kBusy,
                                 std::to_string(core_.jobs.waiting()) + " jobs wait already",
                                 "try again when some are done",
                                 {{"queue", static_cast<int64_t>(core_.jobs.waiting())}}});
  }
  core_.metrics.Add(Counter::kJobsStarted);
}

}  // namespace mk::daemon
