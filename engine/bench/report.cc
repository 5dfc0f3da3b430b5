#include "engine/bench/report.h"

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

namespace mk {
namespace {

// What ceilings and roof take of the whole, for progress.
constexpr double kCeilingsPart = 0.1;

}  // namespace

Result<BenchReport> RunBench(const Model& model, Precision precision, Executor& executor,
                             const BenchPlan& plan, const BenchProgress& progress) {
  const std::function<bool()> go_on = [&] { return !progress || progress(0, "ceilings"); };
  BenchReport report;
  ThreadPool& pool = executor.pool();
  if (pool.size() > 1) {
    Result<std::unique_ptr<ThreadPool>> one = ThreadPool::Create(1);
    if (!one) return Fail(one.error());
    Result<Ceilings> ceilings = MeasureCeilings(**one, go_on);
    if (!ceilings) return Fail(ceilings.error());
    report.ceilings.push_back(*ceilings);
  }
  Result<Ceilings> ceilings = MeasureCeilings(pool, go_on);
  if (!ceilings) return Fail(ceilings.error());
  report.ceilings.push_back(*ceilings);
  Result<Roof> roof = MeasureRoof(model, precision, pool, *ceilings, go_on);
  if (!roof) return Fail(roof.error());
  report.roof = *roof;
  const BenchProgress rest = [&](double done, std::string_view next) {
    return !progress || progress(kCeilingsPart + (1 - kCeilingsPart) * done, next);
  };
  Result<std::vector<BenchPoint>> points = BenchModel(model, executor, *roof, plan, rest);
  if (!points) return Fail(points.error());
  report.points = std::move(*points);
  return report;
}

uint64_t BenchMemory(const ModelInfo& info, const BenchPlan& plan, size_t threads) {
  const auto largest = [](const std::vector<size_t>& values) -> uint64_t {
    return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
  };
  // Of every sequence a copy that runs on; pages of caches are shared but for the last.
  const auto sequences = [&](uint64_t count, uint64_t tokens) {
    return count * (2 * info.state_bytes + info.bytes_per_token * (tokens + 4 * kPrefillBlock));
  };
  const uint64_t single = std::max(largest(plan.contexts), largest(plan.prompts));
  const uint64_t states =
      std::max(sequences(1, single), sequences(largest(plan.batches), plan.batch_context));
  return states + StreamSetBytes(threads);
}

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(": ");
    return colon == std::string::npos ? std::string() : line.substr(colon + 2);
  }
  return {};
}

}  // namespace mk
