#include "daemon/jobs/build_kind.h"

#include <algorithm>
#include <utility>

#include "daemon/errors.h"
#include "engine/build/build_model.h"

namespace mk::daemon {
namespace {

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

protocol::Result<BuildOptions> OptionsOf(const protocol::BuildArgs& args) {
  BuildOptions options;
  options.arch = args.arch;
  options.preset = args.preset;
  options.path = args.out;
  options.seed = args.seed;
  options.threads = static_cast<int>(args.threads);
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

protocol::Result<JobPlan> BuildKind::Prepare(protocol::JobSpec& spec) const {
  protocol::BuildArgs& args = *spec.build;
  if (auto options = OptionsOf(args); !options) return protocol::Fail(std::move(options.error()));
  if (args.threads == 0) args.threads = static_cast<uint32_t>(core_.threads);
  std::string what =
      args.out + " (" + args.arch + ", " + args.preset + (args.dry_run ? ", dry run)" : ")");
  return JobPlan{std::move(what), args.out, {"build", 0, 100, "percent"}};
}

protocol::Result<protocol::JobResult> BuildKind::Run(const protocol::JobSpec& spec,
                                                     JobContext& context) {
  auto options = OptionsOf(*spec.build);
  if (!options) return protocol::Fail(std::move(options.error()));
  auto built = BuildModel(*options, [&context](double fraction) {
    const auto percent = static_cast<uint64_t>(100 * std::clamp(fraction, 0.0, 1.0));
    context.Report({"build", percent, 100, "percent"});
    return !context.cancelled();
  });
  if (!built) return protocol::Fail(ToProtocol(built.error()));
  protocol::JobResult result;
  result.build = ToWire(*built, !options->dry_run);
  return result;
}

}  // namespace mk::daemon
