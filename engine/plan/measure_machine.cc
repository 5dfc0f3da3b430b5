#include "engine/plan/measure_machine.h"

#include <unistd.h>

#include <array>
#include <utility>

#include "engine/bench/bench_model.h"
#include "engine/bench/report.h"
#include "engine/build/build_model.h"

namespace mk {
namespace {

constexpr size_t kContext = 128;
constexpr size_t kPrompt = 512;

// Median seconds of a decoded token and of a token of a prompt.
struct Speed {
  double decode_s = 0;
  double prompt_s = 0;
};

Result<Speed> SpeedOf(const Model& model, Precision precision, Executor& executor,
                      std::chrono::milliseconds time, const std::function<bool()>& go_on) {
  // Limits are not asked for: any roof will do.
  Roof roof;
  roof.precision = precision;
  roof.spine_gb_per_s = roof.expert_gb_per_s = roof.peak_gop_per_s = 1;
  BenchPlan plan;
  plan.contexts = {kContext};
  plan.prompts = {kPrompt};
  plan.first_token_prompt = 0;
  plan.time = time;
  const BenchProgress progress = [&](double, std::string_view) { return !go_on || go_on(); };
  Result<std::vector<BenchPoint>> points = BenchModel(model, executor, roof, plan, progress);
  if (!points) return Fail(points.error());
  Speed speed;
  for (const BenchPoint& point : *points) {
    double& value = point.kind == BenchKind::kDecode ? speed.decode_s : speed.prompt_s;
    value = point.ms_per_token * 1e-3;
  }
  return speed;
}

// A file that goes away again.
class ScratchFile {
 public:
  explicit ScratchFile(std::string path) : path_(std::move(path)) {}
  ~ScratchFile() { ::unlink(path_.c_str()); }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

Result<std::shared_ptr<const Model>> Load(const std::string& path, Precision precision,
                                          size_t threads, const std::function<bool()>& go_on) {
  LoadOptions options;
  options.precision = precision;
  options.threads = static_cast<int>(threads);
  options.progress = [&](double) { return !go_on || go_on(); };
  return LoadModel(path, options);
}

// By the smallest preset, whose weights take no time.
Result<LayerCost> CostOfLayers(const std::string& arch, const std::string& folder,
                               Executor& executor, const std::function<bool()>& go_on) {
  const ScratchFile file(folder + "/layer-probe." + std::to_string(::getpid()) + ".bin");
  BuildOptions build;
  build.arch = arch;
  build.preset = "tiny";
  build.path = file.path();
  build.force = true;
  if (auto built = BuildModel(build); !built) return Fail(built.error());
  auto model = Load(file.path(), Precision::kQ8, executor.pool().size(), go_on);
  if (!model) return Fail(model.error());
  Result<Speed> speed =
      SpeedOf(**model, Precision::kQ8, executor, std::chrono::milliseconds(200), go_on);
  if (!speed) return Fail(speed.error());
  const auto layers = static_cast<double>((*model)->info().layers);
  return LayerCost{speed->decode_s / layers, speed->prompt_s / layers};
}

}  // namespace

Result<MachineProfile> MeasureMachine(Executor& executor, const std::string& folder,
                                      const std::function<bool()>& go_on) {
  MachineProfile profile;
  profile.processor = ProcessorName();
  Result<KernelRates> kernels = MeasureKernels(executor.pool(), go_on);
  if (!kernels) return Fail(kernels.error());
  profile.kernels = *kernels;
  constexpr std::array<std::pair<const char*, const char*>, 2> kArchitectures = {
      {{"k3", "k3"}, {"dsv4", "deepseek_v4"}}};
  for (const auto& [preset, architecture] : kArchitectures) {
    Result<LayerCost> cost = CostOfLayers(preset, folder, executor, go_on);
    if (!cost) return Fail(cost.error());
    profile.layer_costs[architecture] = *cost;
  }
  return profile;
}

Result<ModelSpeed> MeasureModelSpeed(const std::string& path, Precision precision,
                                     Executor& executor, const std::function<bool()>& go_on) {
  auto model = Load(path, precision, executor.pool().size(), go_on);
  if (!model) return Fail(model.error());
  Result<Speed> speed =
      SpeedOf(**model, precision, executor, std::chrono::milliseconds(1500), go_on);
  if (!speed) return Fail(speed.error());
  return ModelSpeed{(*model)->info().fingerprint, precision, executor.pool().size(),
                    speed->decode_s, speed->prompt_s};
}

}  // namespace mk
