#include "daemon/jobs/bench_kind.h"

#include <algorithm>
#include <ctime>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engine/bench/report.h"
#include "engine/kernels/target.h"
#include "protocol/version.h"

namespace mk::daemon {
namespace {

std::string NowAsText() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc)};
}

protocol::BenchRoof ToWire(const Roof& roof) {
  protocol::BenchRoof wire;
  wire.spine_bytes = roof.work.spine_bytes;
  wire.expert_bytes = roof.work.expert_bytes;
  wire.state_bytes = roof.work.state_bytes;
  wire.context_bytes = roof.work.context_bytes;
  wire.multiply_adds = roof.work.multiply_adds;
  wire.head_multiply_adds = roof.work.head_multiply_adds;
  wire.context_multiply_adds = roof.work.context_multiply_adds;
  wire.spine_gb_per_s = roof.spine_gb_per_s;
  wire.expert_gb_per_s = roof.expert_gb_per_s;
  wire.peak_gop_per_s = roof.peak_gop_per_s;
  wire.decode_tokens_per_s = roof.ReadLimit(1, 0);
  return wire;
}

protocol::BenchPoint ToWire(const BenchPoint& point) {
  protocol::BenchPoint wire;
  wire.kind = BenchKindName(point.kind);
  wire.tokens = point.tokens;
  wire.batch = point.batch;
  wire.samples = point.samples;
  wire.step_ms = point.step_ms;
  wire.step_ms_p10 = point.step_ms_p10;
  wire.step_ms_p90 = point.step_ms_p90;
  wire.ms_per_token = point.ms_per_token;
  wire.tokens_per_s = point.tokens_per_s;
  wire.gb_per_s = point.gb_per_s;
  wire.gop_per_s = point.gop_per_s;
  wire.limit_tokens_per_s = point.limit.tokens_per_s;
  wire.limit_by = point.limit.by == Limit::By::kReads ? "reads" : "arithmetic";
  wire.share = point.share;
  return wire;
}

// One benchmark on the scheduler's thread.
struct Measurement {
  std::shared_ptr<const LoadedModel> loaded;
  Precision precision = Precision::kExact;
  BenchPlan plan;
  bool quick = false;
  size_t threads = 0;
  JobContext* context = nullptr;
};

protocol::BenchDone Describe(const Measurement& job) {
  const Model& model = *job.loaded->model;
  const ModelInfo& info = model.info();
  protocol::BenchDone done;
  done.model_path = info.path;
  done.architecture = info.architecture;
  done.fingerprint = info.fingerprint;
  done.vocab = info.vocab;
  done.parameters = info.parameters;
  done.precision = PrecisionName(job.precision);
  done.memory_bytes = model.resident_bytes();
  done.processor = ProcessorName();
  done.processors = std::thread::hardware_concurrency();
  done.threads = job.threads;
  done.target = KernelTarget();
  done.date = NowAsText();
  done.build_id = protocol::BuildId();
  done.quick = job.quick;
  return done;
}

Result<protocol::Body> Measure(const Measurement& job, Executor& executor,
                               const std::function<bool()>& go_on) {
  const auto begin = Clock::now();
  std::unique_ptr<Executor> own;
  if (job.threads != executor.pool().size()) {
    auto made = Executor::Create(job.threads);
    if (!made) return Fail(made.error());
    own = std::move(*made);
  }
  job.context->Report({"bench", 0, 100, "percent"});
  const BenchProgress progress = [&](double fraction, std::string_view) {
    const auto percent = static_cast<uint64_t>(100 * std::clamp(fraction, 0.0, 1.0));
    job.context->Report({"bench", percent, 100, "percent"});
    return go_on();
  };
  auto report =
      RunBench(*job.loaded->model, job.precision, own ? *own : executor, job.plan, progress);
  if (!report) return Fail(report.error());
  protocol::BenchDone done = Describe(job);
  done.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  for (const Ceilings& one : report->ceilings) {
    done.ceilings.push_back({one.threads, one.read_gb_per_s, one.cache_read_gb_per_s,
                             one.fma_gflop_per_s, one.int8_gop_per_s});
  }
  done.roof = ToWire(report->roof);
  for (const BenchPoint& point : report->points) done.points.push_back(ToWire(point));
  return protocol::Body(std::move(done));
}

}  // namespace

protocol::Result<JobPlan> BenchKind::Prepare(protocol::JobSpec& spec) const {
  protocol::BenchArgs& args = *spec.bench;
  auto ref = ResolveSelector(core_, args.model);
  if (!ref) return protocol::Fail(std::move(ref.error()));
  const Precision precision = ParsePrecision(args.precision).value_or(core_.config.precision);
  args.model = {ref->path, ref->vocab_path, ref->rank_path};
  args.precision = PrecisionName(precision);
  if (args.threads == 0) args.threads = static_cast<uint32_t>(core_.threads);
  std::string what = ref->path + " (" + args.precision + (args.quick ? ", quick)" : ")");
  return JobPlan{std::move(what), ref->path, {"load", 0, 100, "percent"}};
}

protocol::Result<protocol::JobResult> BenchKind::Run(const protocol::JobSpec& spec,
                                                     JobContext& context) {
  const protocol::BenchArgs& args = *spec.bench;
  Measurement job;
  job.precision = ParsePrecision(args.precision).value_or(Precision::kExact);
  job.quick = args.quick;
  job.plan = args.quick ? BenchPlan::Quick() : BenchPlan::Full();
  job.threads = args.threads;
  job.context = &context;
  auto lease = engine_.Acquire({args.model.model, args.model.vocab, args.model.rank_file},
                               job.precision, context);
  if (!lease) return protocol::Fail(std::move(lease.error()));
  job.loaded = lease->loaded();
  const uint64_t memory = BenchMemory(job.loaded->model->info(), job.plan, job.threads);
  auto done = engine_.RunAlone(
      [job](Executor& executor, const std::function<bool()>& go_on) {
        return Measure(job, executor, go_on);
      },
      memory, context);
  if (!done) return protocol::Fail(std::move(done.error()));
  protocol::JobResult result;
  result.bench = std::move(std::get<protocol::BenchDone>(*done));
  return result;
}

}  // namespace mk::daemon
