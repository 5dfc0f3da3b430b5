// Speed of one model in one precision, without a daemon:
//   bench_model MODEL PRECISION THREADS [--quick | --decode | --prefill]
// --decode and --prefill measure one point each, for a profiler.

#include <charconv>
#include <cstdio>
#include <cstring>
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

int Run(const char* path, Precision precision, size_t threads, const BenchPlan& plan) {
  Result<std::unique_ptr<Executor>> executor = Executor::Create(threads);
  if (!executor) return Refuse(executor.error().ToString());
  LoadOptions options;
  options.precision = precision;
  options.threads = static_cast<int>(threads);
  const auto start = std::chrono::steady_clock::now();
  Result<std::shared_ptr<const Model>> model = LoadModel(path, options);
  if (!model) return Refuse(model.error().ToString());
  const std::chrono::duration<double> load = std::chrono::steady_clock::now() - start;
  std::printf("%s, %s, %s, loaded in %.2f s\n", path, PrecisionName(precision).data(),
              KernelTarget().data(), load.count());
  Result<BenchReport> report = RunBench(**model, precision, **executor, plan);
  if (!report) return Refuse(report.error().ToString());
  for (const Ceilings& ceilings : report->ceilings) Print(ceilings);
  Print(report->roof);
  std::printf("%-16s %10s %9s %9s %9s %8s %8s %10s %8s\n", "", "tok/s", "step ms", "p10", "p90",
              "GB/s", "GOP/s", "limit", "share");
  for (const BenchPoint& point : report->points) Print(point);
  return 0;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  const std::string_view option = argc == 5 ? argv[4] : "";
  mk::BenchPlan plan = option == "--quick" ? mk::BenchPlan::Quick() : mk::BenchPlan::Full();
  if (option == "--decode" || option == "--prefill") {
    const bool decode = option == "--decode";
    plan.contexts = decode ? std::vector<size_t>{128} : std::vector<size_t>{};
    plan.prompts = decode ? std::vector<size_t>{} : std::vector<size_t>{500};
    plan.batches = {};
    plan.time = std::chrono::seconds(10);
  } else if ((argc != 4 && argc != 5) || (argc == 5 && option != "--quick")) {
    return mk::Refuse(
        "usage: bench_model MODEL PRECISION THREADS [--quick | --decode | --prefill]");
  }
  const auto precision = mk::ParsePrecision(argv[2]);
  if (!precision) return mk::Refuse("the precision is exact, bf16 or q8");
  size_t threads = 0;
  const char* end = argv[3] + std::strlen(argv[3]);
  if (std::from_chars(argv[3], end, threads).ptr != end || threads == 0) {
    return mk::Refuse("the number of threads is a positive number");
  }
  return mk::Run(argv[1], *precision, threads, plan);
}
