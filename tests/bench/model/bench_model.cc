// Speed of one model in one precision, without a daemon:
//   bench_model MODEL PRECISION THREADS [--quick | --batches | --decode | --prefill]
// --batches measures batches of 1, 2, 4 and 8 alone. --decode and --prefill run one point without
// any limits, for a profiler: they say "ready" when the model is loaded and the point begins.

#include <charconv>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/bench/report.h"
#include "engine/kernels/target.h"

namespace mk {
namespace {

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_model: %s\n", problem.c_str());
  return 1;
}

std::string NameOf(const BenchPoint& p) {
  std::string name(BenchKindName(p.kind));
  if (p.kind == BenchKind::kBatch) return name + " of " + std::to_string(p.batch);
  return name + " " + std::to_string(p.tokens);
}

void Print(const Ceilings& c) {
  std::printf(
      "%zu thread(s): read %.1f GB/s (24 MiB again and again: %.1f), f32 FMA %.1f GFLOP/s, "
      "int8 %.1f GOP/s\n",
      c.threads, c.read_gb_per_s, c.cache_read_gb_per_s, c.fma_gflop_per_s, c.int8_gop_per_s);
}

void Print(const Roof& r) {
  const auto mb = [](uint64_t bytes) { return static_cast<double>(bytes) * 1e-6; };
  std::printf(
      "spine %.2f MB at %.1f GB/s, experts %.2f MB per token at %.1f GB/s, state %.2f MB, "
      "%llu bytes per token of context\n",
      mb(r.work.spine_bytes), r.spine_gb_per_s, mb(r.work.expert_bytes), r.expert_gb_per_s,
      mb(r.work.state_bytes), static_cast<unsigned long long>(r.work.context_bytes));
  std::printf("L = %.1f tok/s; %.2f million multiply-adds per token\n\n",
              r.DecodeLimit(1, 128).tokens_per_s, r.DecodeOperations(0) / 2 * 1e-6);
}

void Print(const BenchPoint& p) {
  std::printf("%-16s %10.1f %9.3f %9.3f %9.3f %8.1f %8.1f %10.1f %6.1f %%  %s\n", NameOf(p).c_str(),
              p.tokens_per_s, p.step_ms, p.step_ms_p10, p.step_ms_p90, p.gb_per_s, p.gop_per_s,
              p.limit.tokens_per_s, 100 * p.share,
              p.limit.by == Limit::By::kReads ? "reads" : "arithmetic");
}

// The points alone; no ceilings are measured.
int RunPoints(const Model& model, Precision precision, Executor& executor, const BenchPlan& plan) {
  Result<TokenWork> work = model.Work(precision);
  if (!work) return Refuse(work.error().ToString());
  Roof roof;
  roof.precision = precision;
  roof.work = *work;
  std::printf("ready\n");
  std::fflush(stdout);
  Result<std::vector<BenchPoint>> points = BenchModel(model, executor, roof, plan);
  if (!points) return Refuse(points.error().ToString());
  for (const BenchPoint& p : *points) {
    std::printf("%s: %.1f tok/s\n", NameOf(p).c_str(), p.tokens_per_s);
  }
  return 0;
}

struct Mode {
  BenchPlan plan;
  bool bare = false;  // without limits
};

int Run(const char* path, Precision precision, size_t threads, const Mode& mode) {
  Result<std::unique_ptr<Executor>> executor = Executor::Create(threads);
  if (!executor) return Refuse(executor.error().ToString());
  LoadOptions options;
  options.precision = precision;
  options.threads = static_cast<int>(threads);
  const auto start = std::chrono::steady_clock::now();
  Result<std::shared_ptr<const Model>> model = LoadModel(path, options);
  if (!model) return Refuse(model.error().ToString());
  if (mode.bare) return RunPoints(**model, precision, **executor, mode.plan);
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;
  std::printf("%s, %s, %s, loaded in %.2f s\n", path, PrecisionName(precision).data(),
              KernelTarget().data(), load.count());
  Result<BenchReport> report = RunBench(**model, precision, **executor, mode.plan);
  if (!report) return Refuse(report.error().ToString());
  for (const Ceilings& ceilings : report->ceilings) Print(ceilings);
  Print(report->roof);
  std::printf("%-16s %10s %9s %9s %9s %8s %8s %10s %8s\n", "", "tok/s", "step ms", "p10", "p90",
              "GB/s", "GOP/s", "limit", "share");
  for (const BenchPoint& point : report->points) Print(point);
  return 0;
}

std::optional<Mode> ModeOf(std::string_view option) {
  Mode mode;
  mode.plan = option == "--quick" ? BenchPlan::Quick() : BenchPlan::Full();
  if (option.empty() || option == "--quick") return mode;
  mode.bare = option == "--decode" || option == "--prefill";
  if (!mode.bare && option != "--batches") return std::nullopt;
  if (option != "--decode") mode.plan.contexts = {};
  if (option != "--prefill") mode.plan.prompts = {};
  if (option != "--batches") mode.plan.batches = {};
  mode.plan.first_token_prompt = 0;
  if (mode.bare) {
    (option == "--decode" ? mode.plan.contexts : mode.plan.prompts).resize(1);
    mode.plan.time = std::chrono::seconds(20);
  }
  return mode;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  const auto mode = mk::ModeOf(argc == 5 ? argv[4] : "");
  if ((argc != 4 && argc != 5) || !mode) {
    return mk::Refuse(
        "usage: bench_model MODEL PRECISION THREADS [--quick | --batches | --decode | --prefill]");
  }
  const auto precision = mk::ParsePrecision(argv[2]);
  if (!precision) return mk::Refuse("the precision is exact, bf16 or q8");
  size_t threads = 0;
  const char* end = argv[3] + std::strlen(argv[3]);
  if (std::from_chars(argv[3], end, threads).ptr != end || threads == 0) {
    return mk::Refuse("the number of threads is a positive number");
  }
  return mk::Run(argv[1], *precision, threads, *mode);
}
