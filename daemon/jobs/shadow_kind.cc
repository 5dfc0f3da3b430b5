#include "daemon/jobs/shadow_kind.h"

#include <utility>

#include "daemon/errors.h"
#include "engine/shadow/partial_shadows.h"
#include "engine/shadow/shadow_builder.h"
#include "engine/shadow/shadow_file.h"

namespace mk::daemon {
namespace {

protocol::ShadowDone ToWire(const std::string& model, const ShadowReport& report) {
  protocol::ShadowDone done;
  done.path = report.path;
  done.model_path = model;
  done.format = ShadowFormatName(report.info.version);
  done.fingerprint = report.fingerprint;
  done.stages = report.info.stages;
  done.layers = report.info.layers.size();
  done.experts = report.info.experts;
  done.file_bytes = report.info.file_bytes();
  done.expert_bytes = report.expert_bytes;
  done.relative_error = report.info.relative_error;
  done.gain = report.info.gain;
  done.resumed_layers = report.resumed_layers;
  done.seconds = report.seconds;
  return done;
}

}  // namespace

protocol::Result<JobPlan> ShadowKind::Prepare(protocol::JobSpec& spec) const {
  protocol::ShadowArgs& args = *spec.shadow;
  auto ref = ResolveSelector(core_, {args.model, {}, {}});
  if (!ref) return protocol::Fail(std::move(ref.error()));
  args.model = ref->path;
  if (args.out.empty()) args.out = ShadowPathFor(ref->path);
  if (args.threads == 0) args.threads = static_cast<uint32_t>(core_.threads);
  return JobPlan{args.out, ref->path, {"sample", 0, 0, "bytes"}};
}

// An unfinished file that only this job could go on with.
void ShadowKind::Forget(const protocol::JobRecord& record) const {
  if (record.state != protocol::JobState::kDone) RemovePartialShadows(record.spec.shadow->out);
}

protocol::Result<protocol::JobResult> ShadowKind::Run(const protocol::JobSpec& spec,
                                                      JobContext& context) {
  const protocol::ShadowArgs& args = *spec.shadow;
  ShadowOptions options;
  options.out = args.out;
  options.version = args.version;
  options.stages = args.stages;
  options.threads = static_cast<int>(args.threads);
  options.checkpoint = context.checkpoint();
  uint64_t read = 0;
  std::optional<ReadPace> pace;  // of a stage
  std::string stage;
  options.progress = [&](const ShadowProgress& now) {
    if (stage != now.stage) pace.emplace(limit_);
    stage = now.stage;
    const bool bytes = stage != "train";
    context.Report({stage, now.done, now.total, bytes ? "bytes" : "rounds"});
    if (!bytes) return !context.cancelled();
    read = now.done;
    return pace->Keep(now.done, context);
  };
  options.save = [&](std::string checkpoint) {
    context.SaveCheckpoint(std::move(checkpoint), read);
  };
  auto built = BuildShadows(args.model, options);
  if (!built) return protocol::Fail(ToModelError(built.error()));
  protocol::JobResult result;
  result.shadow = ToWire(args.model, *built);
  return result;
}

}  // namespace mk::daemon
