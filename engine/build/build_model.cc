#include "engine/build/build_model.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <span>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>

#include "engine/build/dsv4_plan.h"
#include "engine/build/dsv4_presets.h"
#include "engine/build/generator.h"
#include "engine/build/k3_plan.h"
#include "engine/build/model_plan.h"

namespace mk {
namespace {

// A piece of work: some elements of one large tensor, or several whole small ones.
struct Unit {
  size_t first_tensor = 0;
  size_t tensors = 1;
  uint64_t first_element = 0;
  uint64_t elements = 0;  // 0: all
};

constexpr uint64_t kUnitBytes = 8u << 20;
constexpr uint64_t kUnitElements = kUnitBytes / sizeof(float);

std::vector<Unit> CutIntoUnits(const ModelPlan& plan, const MkimLayout& layout) {
  std::vector<Unit> units;
  uint64_t gathered = 0;  // bytes in the last unit, when it holds whole tensors
  for (size_t t = 0; t < plan.tensors.size(); ++t) {
    const TensorSpec& spec = plan.tensors[t];
    const uint64_t bytes = layout.blobs[t].size;
    if (spec.dtype == DType::kF32 && bytes > kUnitBytes) {
      const uint64_t elements = *ElementCount(spec.dims);
      for (uint64_t at = 0; at < elements; at += kUnitElements) {
        units.push_back({t, 1, at, std::min(kUnitElements, elements - at)});
      }
      gathered = kUnitBytes;
      continue;
    }
    if (!units.empty() && gathered + bytes <= kUnitBytes) {
      ++units.back().tensors;
      gathered += bytes;
    } else {
      units.push_back({t, 1, 0, 0});
      gathered = bytes;
    }
  }
  return units;
}

// Fills one tensor's elements [first, first + out.size()/4) or its whole coded blob.
void Generate(uint64_t seed, const TensorSpec& spec, const Distribution& values, uint64_t first,
              std::span<std::byte> out) {
  const std::span<float> floats(reinterpret_cast<float*>(out.data()), out.size() / sizeof(float));
  if (const auto* normal = std::get_if<NormalValues>(&values)) {
    const uint64_t zero_from = std::max(normal->zero_from, first) - first;
    const size_t live = std::min<uint64_t>(floats.size(), zero_from);
    FillNormal(HashStream(seed, spec.name), first, static_cast<float>(normal->mean),
               normal->deviation, floats.first(live));
    std::fill(floats.begin() + static_cast<ptrdiff_t>(live), floats.end(), 0.0f);
  } else if (const auto* shifted = std::get_if<ShiftedNormalValues>(&values)) {
    const HashStream stream(seed, spec.name);
    for (size_t i = 0; i < floats.size(); ++i) {
      FillNormal(stream, first + i, shifted->means[first + i], shifted->deviation,
                 floats.subspan(i, 1));
    }
  } else if (const auto* permuted = std::get_if<PermutationValues>(&values)) {
    const std::span<int32_t> integers(reinterpret_cast<int32_t*>(out.data()),
                                      out.size() / sizeof(int32_t));
    FillPermutation(HashStream(seed, spec.name), first / spec.dims[1], spec.dims[1],
                    permuted->range, integers);
  } else if (const auto* grid = std::get_if<GridValues>(&values)) {
    FillGrid(first, *ElementCount(spec.dims), grid->begin, grid->end, floats);
  } else if (const auto* coded = std::get_if<CodedExpertValues>(&values)) {
    FillCodedExpert(seed, spec.name, spec.dims[0], spec.dims[1], coded->gain, out);
  }
}

// Runs the units on a few threads; the first error stops all of them.
class Job {
 public:
  Job(const ModelPlan& plan, uint64_t seed, MkimWriter& writer,
      const std::function<bool(double)>& progress)
      : plan_(plan),
        seed_(seed),
        writer_(writer),
        progress_(progress),
        units_(CutIntoUnits(plan, writer.layout())) {}

  Status Run(int threads) {
    {
      std::vector<std::jthread> workers;
      for (int i = 1; i < threads; ++i) workers.emplace_back([this] { Work(); });
      Work();
    }
    return status_;
  }

 private:
  void Work() {
    // floats are written into it, hence the alignment of max_align_t that new gives
    std::vector<std::byte> buffer;
    while (!stop_.load(std::memory_order_relaxed)) {
      const size_t index = next_.fetch_add(1, std::memory_order_relaxed);
      if (index >= units_.size()) return;
      const Status status = RunUnit(units_[index], buffer);
      Finish(status);
    }
  }

  Status RunUnit(const Unit& unit, std::vector<std::byte>& buffer) {
    for (size_t t = unit.first_tensor; t < unit.first_tensor + unit.tensors; ++t) {
      const uint64_t bytes =
          unit.elements > 0 ? unit.elements * sizeof(float) : writer_.layout().blobs[t].size;
      buffer.resize(bytes);
      Generate(seed_, plan_.tensors[t], plan_.values[t], unit.first_element, buffer);
      const Status written = writer_.WriteBlobRange(t, unit.first_element * sizeof(float), buffer);
      if (!written) return written;
    }
    return {};
  }

  void Finish(const Status& status) {
    const std::lock_guard lock(mutex_);
    ++done_;
    if (!status_) return;
    if (!status) {
      status_ = status;
    } else if (progress_ &&
               !progress_(static_cast<double>(done_) / static_cast<double>(units_.size()))) {
      status_ = Fail(ErrorCode::kCancelled, "the build was cancelled");
    }
    if (!status_) stop_.store(true, std::memory_order_relaxed);
  }

  const ModelPlan& plan_;
  const uint64_t seed_;
  MkimWriter& writer_;
  const std::function<bool(double)>& progress_;
  const std::vector<Unit> units_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  size_t done_ = 0;  // guarded by mutex_
  Status status_;    // guarded by mutex_
};

Result<ModelPlan> MakePlan(const BuildOptions& options) {
  if (options.arch == "k3") return PlanK3(options.preset, options.seed, options.overrides);
  if (options.arch == "dsv4") return PlanDsv4(options.preset, options.seed, options.overrides);
  return Fail(ErrorCode::kInvalidArgument, "unknown arch \"" + options.arch + "\"",
              "architectures that can be built: k3, dsv4");
}

uint64_t CountParameters(const ModelPlan& plan) {
  uint64_t count = 0;
  for (const TensorSpec& spec : plan.tensors) {
    if (spec.dtype != DType::kI32) count += ElementCount(spec.dims).value_or(0);
  }
  return count;
}

void FillSizes(const ModelPlan& plan, const MkimLayout& layout, BuildReport& report) {
  report.tensors = plan.tensors.size();
  report.parameters = CountParameters(plan);
  report.file_bytes = layout.file_bytes;
  report.expert_bytes = layout.expert_bytes;
  report.spine_bytes = layout.spine_bytes;
}

}  // namespace

std::vector<std::string> PresetNames(const std::string& arch) {
  if (arch == "k3") return K3PresetNames();
  if (arch == "dsv4") return Dsv4PresetNames();
  return {};
}

Result<BuildReport> BuildModel(const BuildOptions& options,
                               const std::function<bool(double)>& progress) {
  constexpr int kMaxThreads = 1024;
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return Fail(ErrorCode::kInvalidArgument,
                "threads is " + std::to_string(options.threads) + ", it must be 1 to " +
                    std::to_string(kMaxThreads),
                "give another count, or none for the default");
  }
  const auto start = std::chrono::steady_clock::now();
  auto plan = MakePlan(options);
  if (!plan) return Fail(plan.error());
  BuildReport report;
  report.path =
      options.path.empty() ? "mk-" + options.arch + "-" + options.preset + ".bin" : options.path;
  if (options.dry_run) {
    const auto layout = PlanLayout(plan->config_json, plan->tensors, options.align);
    if (!layout) return Fail(layout.error());
    FillSizes(*plan, *layout, report);
    return report;
  }
  MkimWriter::Options writing;
  writing.align = options.align;
  writing.replace = options.force;
  auto writer = MkimWriter::Create(report.path, plan->config_json, plan->tensors, writing);
  if (!writer) return Fail(writer.error());
  FillSizes(*plan, (*writer)->layout(), report);
  Status status = Job(*plan, options.seed, **writer, progress).Run(options.threads);
  if (status) status = (*writer)->Commit();
  if (!status) return Fail(status.error());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace mk
