#include "daemon/plan_tool.h"

#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "daemon/config.h"
#include "daemon/dirs.h"
#include "daemon/memory_limit.h"
#include "daemon/model_catalog.h"
#include "daemon/plan_text.h"
#include "daemon/tool_output.h"
#include "engine/plan/expert_reads.h"
#include "engine/plan/measure_machine.h"
#include "engine/plan/real_shapes.h"
#include "protocol/error.h"

namespace mk::daemon {
namespace {

constexpr size_t kUsualDepth = 32;
// A smaller file tells little of its disk.
constexpr uint64_t kLeastProbeBytes = uint64_t{16} << 20;

struct Arguments {
  std::string model;
  std::string precision;
  std::string policy;
  std::string trace;
  uint64_t ram = 0;
  double disk_bandwidth = 0;  // bytes per second; 0: as measured
  double disk_latency = -1;   // seconds; negative: as measured
  size_t disk_depth = 0;
  size_t cores = 0;
  double memory_bandwidth = 0;  // bytes per second; 0: as measured
  double skew = 0;
  size_t context = 0;
  size_t prompt = 0;
  bool measure = false;
  bool json = false;

  bool gives_disk() const { return disk_bandwidth > 0 && disk_latency >= 0; }
};

// Interrupts wait until scratch files are gone.
class Interrupts {
 public:
  Interrupts() {
    sigemptyset(&set_);
    sigaddset(&set_, SIGINT);
    sigaddset(&set_, SIGTERM);
    sigprocmask(SIG_BLOCK, &set_, &before_);
  }
  // One that came ends the process here.
  ~Interrupts() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  static bool None() {
    sigset_t pending;
    sigpending(&pending);
    return sigismember(&pending, SIGINT) == 0 && sigismember(&pending, SIGTERM) == 0;
  }

 private:
  sigset_t set_;
  sigset_t before_;
};

class Tool {
 public:
  Tool(const Arguments& arguments, Config config)
      : arguments_(arguments), config_(std::move(config)) {
    const auto cores = static_cast<size_t>(config_.threads);
    threads_ = cores > 0 ? cores : std::max<size_t>(1, std::thread::hardware_concurrency());
  }

  int Run() {
    Status done = Open();
    if (done) done = Measure();
    if (!done) return ReportFailure(done.error());
    if (arguments_.model.empty()) {
      return PrintOut(arguments_.json ? ToJsonText(report_.profile)
                                      : ToText(report_.profile, profile_path_));
    }
    if (done = Plan(); !done) return ReportFailure(done.error());
    const int code = PrintOut(arguments_.json ? ToJson(report_).dump() + "\n" : ToText(report_));
    const std::optional<Error> refusal = Refusal(report_);
    return refusal && code == protocol::kExitDone ? ReportFailure(*refusal) : code;
  }

 private:
  // The model's header.
  Status Open() {
    if (arguments_.model.empty()) return {};
    report_.model = arguments_.model;
    const auto shapes = RealShapeNames();
    report_.is_file = std::find(shapes.begin(), shapes.end(), report_.model) == shapes.end();
    Result<std::shared_ptr<const MkimFile>> file = OpenFile();
    if (!file) return Fail(file.error());
    Result<ModelFootprint> footprint = MeasureModel(*file, arguments_.context);
    if (!footprint) return Fail(footprint.error());
    report_.footprint = std::move(*footprint);
    if (report_.footprint.info.experts > 0) {
      Result<ReadPlanner> reads = PlanReadsOf(*file);
      if (!reads) return Fail(reads.error());
      report_.question.plan_reads = std::move(*reads);
    }
    if (!report_.is_file) return {};
    device_ = (*file)->identity().device;
    Result<std::string> fingerprint = (*file)->Fingerprint();
    if (!fingerprint) return Fail(fingerprint.error());
    report_.footprint.info.fingerprint = std::move(*fingerprint);
    return {};
  }

  Result<std::shared_ptr<const MkimFile>> OpenFile() {
    if (!report_.is_file) return RealShape(report_.model);
    auto path = ResolveModel(arguments_.model, config_, DefaultModelFolders());
    if (!path) return Fail(path.error());
    path_ = *path;
    return MkimFile::Open(path_);
  }

  // What is kept of this machine, and what is missing of it.
  Status Measure() {
    const std::filesystem::path state = StateDirectory();
    if (Status made = MakePrivateDirectory(state); !made) return made;
    profile_path_ = (state / "machine.json").string();
    auto kept = ReadProfile(profile_path_);
    if (!kept && !arguments_.measure) return Fail(kept.error());
    bool changed = false;
    if (kept && *kept) report_.profile = std::move(**kept);
    const Interrupts interrupts;
    if (arguments_.measure || report_.profile.kernels.threads != threads_) {
      if (Status done = MeasureKernelsHere(state.string()); !done) return done;
      changed = true;
    }
    if (arguments_.measure || (!arguments_.gives_disk() && !HasDisk())) {
      if (Status done = MeasureDiskHere(state.string()); !done) return done;
      changed = true;
    }
    if (arguments_.measure && !path_.empty()) {
      if (Status done = MeasureModelHere(); !done) return done;
    }
    return changed ? WriteProfile(profile_path_, report_.profile) : Status();
  }

  void Say(const std::string& text) const { std::fprintf(stderr, "mk: %s\n", text.c_str()); }

  bool HasDisk() const {
    const auto& disks = report_.profile.disks;
    if (path_.empty()) return !disks.empty();
    return std::any_of(disks.begin(), disks.end(),
                       [&](const DiskProbe& disk) { return disk.device == device_; });
  }

  Result<Executor*> Workers() {
    if (!executor_) {
      auto made = Executor::Create(threads_);
      if (!made) return Fail(made.error());
      executor_ = std::move(*made);
    }
    return executor_.get();
  }

  Status MeasureKernelsHere(const std::string& folder) {
    Say("measuring the kernels, some seconds");
    auto workers = Workers();
    if (!workers) return Fail(workers.error());
    auto profile = MeasureMachine(**workers, folder, Interrupts::None);
    if (!profile) return Fail(profile.error());
    profile->disks = std::move(report_.profile.disks);
    // Runs of models stand for the processor that they ran on.
    if (profile->processor == report_.profile.processor) {
      profile->models = std::move(report_.profile.models);
    }
    report_.profile = std::move(*profile);
    return {};
  }

  Status MeasureDiskHere(const std::string& folder) {
    Say("measuring the disk, some seconds");
    const bool model = report_.footprint.spine_file_bytes >= kLeastProbeBytes && !path_.empty();
    auto disk =
        model ? MeasureDisk(path_, kUsualDepth, Interrupts::None)
              : MeasureDiskOf(
                    path_.empty() ? folder : std::filesystem::path(path_).parent_path().string(),
                    kUsualDepth, Interrupts::None);
    // Beside a model of somebody else's nothing can be written.
    if (!disk && !model && disk.error().code == ErrorCode::kPermissionDenied) {
      disk = MeasureDisk(path_, kUsualDepth, Interrupts::None);
    }
    if (!disk) return Fail(disk.error());
    report_.profile.SetDisk(*disk);
    return {};
  }

  Status MeasureModelHere() {
    const PlanMemory memory = PredictMemory(report_.footprint, Wanted());
    if (memory.whole() > Ram()) {
      Say("the model does not fit as a whole: it is not run");
      return {};
    }
    Say("running the model, some seconds");
    auto workers = Workers();
    if (!workers) return Fail(workers.error());
    auto speed = MeasureModelSpeed(path_, Wanted(), **workers, Interrupts::None);
    if (!speed) return Fail(speed.error());
    report_.profile.SetModel(std::move(*speed));
    return {};
  }

  Precision Wanted() const {
    return ParsePrecision(arguments_.precision).value_or(config_.precision);
  }

  uint64_t Ram() const {
    if (arguments_.ram > 0) return arguments_.ram;
    return config_.memory > 0 ? config_.memory : DefaultMemoryBudget();
  }

  void DescribeMachine() {
    PlanMachine& machine = report_.machine;
    machine.ram_bytes = Ram();
    machine.cores = arguments_.cores > 0 ? arguments_.cores : threads_;
    machine.memory_gb_per_s = arguments_.memory_bandwidth * 1e-9;
    if (const auto disk = report_.profile.Disk(device_)) {
      machine.disk = disk->timing;
      report_.disk_direct = disk->direct;
    }
    report_.disk_given = arguments_.gives_disk();
    if (arguments_.disk_bandwidth > 0) machine.disk.bytes_per_s = arguments_.disk_bandwidth;
    if (arguments_.disk_latency >= 0) machine.disk.latency_s = arguments_.disk_latency;
    if (arguments_.disk_depth > 0) machine.disk.depth = arguments_.disk_depth;
  }

  Status Plan() {
    DescribeMachine();
    PlanQuestion& question = report_.question;
    question.precision = Wanted();
    question.policy = ParseCachePolicy(arguments_.policy).value_or(CachePolicyKind::kAged);
    question.prompt_tokens = arguments_.prompt;
    question.skew = arguments_.skew;
    if (!arguments_.trace.empty()) {
      auto trace = ReadDemandTrace(arguments_.trace);
      if (!trace) return Fail(trace.error());
      trace_ = std::move(*trace);
      question.trace = &trace_;
      report_.trace = arguments_.trace;
    }
    auto plan = PlanModel(report_.footprint, report_.profile, report_.machine, question);
    if (!plan) {
      Error error = plan.error();
      if (error.code == ErrorCode::kIncompatible)
        error.message = report_.trace + ": " + error.message;
      return Fail(std::move(error));
    }
    report_.plan = std::move(*plan);
    return {};
  }

  const Arguments& arguments_;
  const Config config_;
  size_t threads_ = 1;
  std::string path_;  // of the model's file; "" for a shape
  uint64_t device_ = 0;
  std::string profile_path_;
  std::unique_ptr<Executor> executor_;
  DemandTrace trace_;
  PlanReport report_;
};

int Run(const Arguments& arguments) {
  auto config = LoadConfig(ConfigFile());
  if (!config) return ReportFailure(config.error());
  return Tool(arguments, std::move(config->config)).Run();
}

}  // namespace

int PlanTool(int argc, const char* const* argv) {
  Arguments arguments;
  CLI::App app("What `mk plan` runs", "microkimid plan");
  app.add_option("MODEL", arguments.model);
  app.add_option("--precision", arguments.precision);
  app.add_option("--policy", arguments.policy)->required();
  app.add_option("--trace", arguments.trace);
  app.add_option("--ram", arguments.ram);
  app.add_option("--disk-bandwidth", arguments.disk_bandwidth);
  app.add_option("--disk-latency", arguments.disk_latency);
  app.add_option("--disk-depth", arguments.disk_depth);
  app.add_option("--cores", arguments.cores);
  app.add_option("--memory-bandwidth", arguments.memory_bandwidth);
  app.add_option("--skew", arguments.skew)->required();
  app.add_option("--context", arguments.context)->required()->check(CLI::PositiveNumber);
  app.add_option("--prompt", arguments.prompt)->required()->check(CLI::PositiveNumber);
  app.add_flag("--measure", arguments.measure);
  app.add_flag("--json", arguments.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return Run(arguments);
  } catch (const std::exception& exception) {
    return ReportFailure({ErrorCode::kInternal, exception.what(), ""});
  }
}

}  // namespace mk::daemon
