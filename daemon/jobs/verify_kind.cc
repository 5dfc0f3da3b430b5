#include "daemon/jobs/verify_kind.h"

#include <utility>

#include "daemon/errors.h"
#include "engine/base/file.h"
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

}  // namespace

protocol::Result<JobPlan> VerifyKind::Prepare(protocol::JobSpec& spec) const {
  auto ref = ResolveSelector(core_, {spec.verify->model, {}, {}});
  if (!ref) return protocol::Fail(std::move(ref.error()));
  spec.verify->model = ref->path;
  const auto opened = OpenForReading(ref->path);
  const uint64_t bytes = opened ? opened->identity.size : 0;
  return JobPlan{ref->path, ref->path, {"verify", 0, bytes, "bytes"}};
}

protocol::Result<protocol::JobResult> VerifyKind::Run(const protocol::JobSpec& spec,
                                                      JobContext& context) {
  ReadPace pace(limit_);
  uint64_t read = 0;
  VerifyOptions options;
  options.progress = [&](uint64_t done, uint64_t total) {
    read = done;
    context.Report({"verify", done, total, "bytes"});
    return pace.Keep(done, context);
  };
  options.checkpoint = context.checkpoint();
  options.save = [&](std::string checkpoint) {
    context.SaveCheckpoint(std::move(checkpoint), read);
  };
  auto verified = VerifyFile(spec.verify->model, options);
  if (!verified) return protocol::Fail(ToModelError(verified.error()));
  protocol::JobResult result;
  result.verify = ToWire(spec.verify->model, *verified);
  return result;
}

}  // namespace mk::daemon
