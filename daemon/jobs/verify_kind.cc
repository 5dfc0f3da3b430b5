#include "daemon/jobs/verify_kind.h"

#include <algorithm>
#include <thread>
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

// Holds a reader to so many bytes per second.
class Pace {
 public:
  explicit Pace(const ReadLimit& limit) : limit_(limit) {}

  // Waits until `done` bytes may have been read, in short steps. False: the job was cancelled.
  bool Keep(uint64_t done, const JobContext& context) {
    constexpr auto kStep = std::chrono::milliseconds(20);
    if (first_) {
      first_ = false;
      begin_ = Clock::now();
      from_ = done;
    }
    while (!context.cancelled()) {
      const uint64_t limit = limit_.load();
      const double seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
      const auto read = static_cast<double>(done - std::min(done, from_));
      if (limit == 0 || read <= seconds * static_cast<double>(limit)) return true;
      std::this_thread::sleep_for(kStep);
    }
    return false;
  }

 private:
  const ReadLimit& limit_;
  bool first_ = true;
  Clock::time_point begin_;
  uint64_t from_ = 0;
};

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
  Pace pace(limit_);
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
