// Predictions of `mk plan` next to what streaming then takes, on a disk as slow as one likes:
//   bench_plan MODEL PRECISION THREADS [LATENCY_MS MB_PER_S [TOKENS]]
// The model runs once with all experts in memory, which also records its demands; then it decodes
// the same tokens with budgets of 10, 25 and 50 % of its experts, nothing fetched ahead, from an
// empty cache; of the second half of the tokens the median counts. Prompts are read with an empty
// cache, too.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/executor.h"
#include "engine/plan/expert_reads.h"
#include "engine/plan/measure_machine.h"
#include "engine/plan/prediction.h"

namespace mk {
namespace {

constexpr size_t kPromptTokens = 512;
constexpr double kShares[] = {0.10, 0.25, 0.50};

struct Settings {
  std::string path;
  Precision precision = Precision::kQ8;
  size_t threads = 2;
  DiskTiming disk{0.002, 500e6, 32};
  size_t tokens = 64;
};

int Refuse(const std::string& problem) {
  std::fprintf(stderr, "bench_plan: %s\n", problem.c_str());
  return 1;
}

// Experts of every layer, as a cache of them is asked: each once per layer and pass.
class Recorder final : public ForwardObserver {
 public:
  explicit Recorder(const ModelInfo& info) {
    trace.layers = info.layers;
    trace.experts = info.experts;
  }
  void OnRouter(size_t, size_t, size_t layer, std::span<const int32_t> experts,
                std::span<const float>) override {
    const std::set<int32_t> distinct(experts.begin(), experts.end());
    for (const int32_t expert : distinct) {
      trace.demands.push_back(
          static_cast<ExpertKey>(layer * trace.experts + static_cast<size_t>(expert)));
    }
  }
  DemandTrace trace;
};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Seconds of a run, and what was waited for.
struct Run {
  double decode_s = 0;  // of a token, second half
  double stall_s = 0;
  double prompt_s = 0;
  double hit_rate = 0;  // second half
};

double Part(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

double Median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

StreamStats StatsOf(const Model& model) {
  return model.stream_stats().value_or(StreamStats());
}

Result<std::unique_ptr<Sequence>> NewSequence(const Model& model, const Settings& settings) {
  SequenceOptions options;
  options.precision = settings.precision;
  return model.NewSequence(options);
}

// Decodes random tokens one by one, the same ones in every run.
Status Decode(const Model& model, Executor& executor, const Settings& settings,
              ForwardObserver* observer, Run& run) {
  auto sequence = NewSequence(model, settings);
  if (!sequence) return Fail(sequence.error());
  std::minstd_rand random(1);
  std::vector<float> logits(model.info().vocab);
  StreamStats half;
  std::vector<double> token_s;
  std::vector<double> stall_s;
  for (size_t i = 0; i < settings.tokens; ++i) {
    const StreamStats before = StatsOf(model);
    if (i == settings.tokens / 2) half = before;
    const auto start = Clock::now();
    const auto token = static_cast<int32_t>(random() % model.info().vocab);
    ForwardItem item{sequence->get(), {&token, 1}, LogitsWanted::kLast, logits};
    if (Status ran = model.Forward(executor, {&item, 1}, observer); !ran) return ran;
    if (i < settings.tokens / 2) continue;
    token_s.push_back(SecondsSince(start));
    stall_s.push_back(static_cast<double>(StatsOf(model).stall_ns - before.stall_ns) * 1e-9);
  }
  run.decode_s = Median(token_s);
  run.stall_s = Median(stall_s);
  const StreamStats after = StatsOf(model);
  run.hit_rate = Part(after.hits - half.hits, after.demands - half.demands);
  return {};
}

Status Prompt(const Model& model, Executor& executor, const Settings& settings, Run& run) {
  auto sequence = NewSequence(model, settings);
  if (!sequence) return Fail(sequence.error());
  std::minstd_rand random(2);
  std::vector<int32_t> tokens(kPromptTokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % model.info().vocab);
  std::vector<float> logits(model.info().vocab);
  ForwardItem item{sequence->get(), tokens, LogitsWanted::kLast, logits};
  const auto start = Clock::now();
  if (Status ran = model.Forward(executor, {&item, 1}); !ran) return ran;
  run.prompt_s = SecondsSince(start);
  return {};
}

Result<Run> RunStreamed(const Settings& settings, Executor& executor, uint64_t budget) {
  LoadOptions options;
  options.precision = settings.precision;
  options.threads = static_cast<int>(settings.threads);
  StreamOptions& stream = options.stream.emplace();
  stream.budget = budget;
  stream.prefetch = {};
  stream.slow_disk = {static_cast<uint64_t>(std::llround(settings.disk.latency_s * 1e6)),
                      static_cast<uint64_t>(settings.disk.bytes_per_s),
                      static_cast<uint32_t>(settings.disk.depth)};
  Run run;
  // The prompt first: then the cache is empty.
  for (const bool prompt : {true, false}) {
    auto model = LoadModel(settings.path, options);
    if (!model) return Fail(model.error());
    const Status done = prompt ? Prompt(**model, executor, settings, run)
                               : Decode(**model, executor, settings, nullptr, run);
    if (!done) return Fail(done.error());
  }
  return run;
}

double Off(double predicted, double measured) {
  return 100 * (predicted / measured - 1);
}

void Print(const BudgetRow& row, const Run& run) {
  const double decode_ms = 1000 / row.decode_tokens_per_s;
  std::printf("%4.0f %%  %6.1f %6.1f  %9.1f %9.1f  %9.1f %9.1f %+6.1f %%  %9.0f %9.0f %+6.1f %%\n",
              row.share * 100, row.hit_rate * 100, run.hit_rate * 100, row.stall_s * 1e3,
              run.stall_s * 1e3, decode_ms, run.decode_s * 1e3, Off(decode_ms, run.decode_s * 1e3),
              row.prompt_s * 1e3, run.prompt_s * 1e3, Off(row.prompt_s, run.prompt_s));
  std::fflush(stdout);
}

// What the kernels and the whole model take here, and the demands of its tokens.
Status MeasureResident(const Settings& settings, Executor& executor, const ModelFootprint& model,
                       MachineProfile& profile, DemandTrace& trace) {
  auto measured = MeasureMachine(executor, "/tmp");
  if (!measured) return Fail(measured.error());
  profile = std::move(*measured);
  auto speed = MeasureModelSpeed(settings.path, settings.precision, executor);
  if (!speed) return Fail(speed.error());
  profile.SetModel(*speed);
  LoadOptions options;
  options.precision = settings.precision;
  options.threads = static_cast<int>(settings.threads);
  auto loaded = LoadModel(settings.path, options);
  if (!loaded) return Fail(loaded.error());
  Recorder recorder(model.info);
  Run run;
  if (Status ran = Decode(**loaded, executor, settings, &recorder, run); !ran) return ran;
  trace = std::move(recorder.trace);
  return {};
}

Status Compare(const Settings& settings) {
  auto file = MkimFile::Open(settings.path);
  if (!file) return Fail(file.error());
  auto model = MeasureModel(*file, settings.tokens);
  if (!model) return Fail(model.error());
  auto fingerprint = (*file)->Fingerprint();
  if (!fingerprint) return Fail(fingerprint.error());
  model->info.fingerprint = *fingerprint;
  auto executor = Executor::Create(settings.threads);
  if (!executor) return Fail(executor.error());
  MachineProfile profile;
  PlanQuestion question;
  DemandTrace trace;
  Status ready = MeasureResident(settings, **executor, *model, profile, trace);
  if (!ready) return ready;
  question.precision = settings.precision;
  question.prompt_tokens = kPromptTokens;
  question.trace = &trace;
  auto reads = PlanReadsOf(*file);
  if (!reads) return Fail(reads.error());
  question.plan_reads = std::move(*reads);
  question.shares.assign(std::begin(kShares), std::end(kShares));
  PlanMachine machine;
  machine.ram_bytes = ~uint64_t{0} >> 1;
  machine.disk = settings.disk;
  machine.cores = settings.threads;
  auto plan = PlanModel(*model, profile, machine, question);
  if (!plan) return Fail(plan.error());
  std::printf(
      "%s, %s, %zu threads; disk %g ms, %.0f MB/s; resident: %.2f ms per token, %.0f ms "
      "for a prompt of %zu\n",
      settings.path.c_str(), std::string(PrecisionName(settings.precision)).c_str(),
      settings.threads, settings.disk.latency_s * 1e3, settings.disk.bytes_per_s * 1e-6,
      plan->compute.decode_s * 1e3, plan->compute.prompt_s * 1e3, kPromptTokens);
  std::printf(
      "predicted, then measured\n"
      "budget         hits %%            wait ms          ms per token              ms of the "
      "prompt\n");
  for (const BudgetRow& row : plan->rows) {
    auto run = RunStreamed(settings, **executor, row.cache_bytes);
    if (!run) return Fail(run.error());
    Print(row, *run);
  }
  return {};
}

std::optional<Settings> Parse(int argc, char** argv) {
  if (argc != 4 && argc != 6 && argc != 7) return std::nullopt;
  Settings settings;
  settings.path = argv[1];
  const auto precision = ParsePrecision(argv[2]);
  settings.threads = static_cast<size_t>(std::strtoul(argv[3], nullptr, 10));
  if (argc >= 6) {
    settings.disk.latency_s = std::strtod(argv[4], nullptr) * 1e-3;
    settings.disk.bytes_per_s = std::strtod(argv[5], nullptr) * 1e6;
  }
  if (argc == 7) settings.tokens = static_cast<size_t>(std::strtoul(argv[6], nullptr, 10));
  if (!precision || settings.threads == 0 || settings.tokens < 2) return std::nullopt;
  if (!(settings.disk.latency_s >= 0 && settings.disk.bytes_per_s >= 1)) return std::nullopt;
  settings.precision = *precision;
  return settings;
}

}  // namespace
}  // namespace mk

int main(int argc, char** argv) {
  const auto settings = mk::Parse(argc, argv);
  if (!settings) {
    return mk::Refuse("usage: bench_plan MODEL PRECISION THREADS [LATENCY_MS MB_PER_S [TOKENS]]");
  }
  const mk::Status done = mk::Compare(*settings);
  return done ? 0 : mk::Refuse(done.error().ToString());
}
