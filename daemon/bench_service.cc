#include "daemon/bench_service.h"

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

constexpr auto kProgressInterval = std::chrono::milliseconds(200);

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

// One benchmark on its way to the scheduler's thread.
struct Job {
  uint64_t key = 0;
  std::shared_ptr<const LoadedModel> loaded;
  Precision precision = Precision::kExact;
  BenchPlan plan;
  bool quick = false;
  size_t threads = 0;
  IoQueue* events = nullptr;
};

protocol::BenchDone Describe(const Job& job) {
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

Result<protocol::Body> Run(const Job& job, Executor& executor, const std::function<bool()>& go_on) {
  const auto begin = Clock::now();
  std::unique_ptr<Executor> own;
  if (job.threads != executor.pool().size()) {
    auto made = Executor::Create(job.threads);
    if (!made) return Fail(made.error());
    own = std::move(*made);
  }
  auto told = Clock::time_point{};
  const BenchProgress progress = [&](double fraction, std::string_view) {
    const auto now = Clock::now();
    if (now - told >= kProgressInterval) {
      told = now;
      const auto percent = static_cast<uint64_t>(100 * std::clamp(fraction, 0.0, 1.0));
      job.events->Push(WorkProgress{job.key, {"bench", percent, 100, "percent"}});
    }
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

protocol::Error TooManyWait() {
  return {protocol::ErrorCode::kBusy, "too many requests wait", "try again", {}};
}

}  // namespace

std::optional<protocol::Error> BenchService::Refuse(const ClientRequest& request) const {
  int64_t others = 0;
  for (const auto& [key, other] : core_.clients.requests()) {
    const bool works = protocol::InfoOf(other->op).streams && !other->final;
    if (works && key != request.key) ++others;
  }
  if (others == 0) return std::nullopt;
  return protocol::Error{protocol::ErrorCode::kBusy,
                         "a benchmark needs the machine for itself, and " + std::to_string(others) +
                             (others == 1 ? " other request is" : " other requests are") + " open",
                         "try again when `mk status` shows none",
                         {{"requests", others}}};
}

void BenchService::Handle(ClientRequest& request) {
  if (auto error = Refuse(request)) return core_.clients.Finish(request, std::move(*error));
  const auto& args = std::get<protocol::BenchArgs>(request.args);
  core_.clients.Send(request, protocol::Accepted{});
  request.precision = models_.PrecisionOf(args.precision);
  models_.Acquire(request, args.model);
}

void BenchService::OnModelReady(ClientRequest& request, ModelRegistry::Entry& entry) {
  const auto& args = std::get<protocol::BenchArgs>(request.args);
  Job job;
  job.key = request.key;
  job.loaded = entry.loaded;
  job.precision = request.precision;
  job.quick = args.quick;
  job.plan = args.quick ? BenchPlan::Quick() : BenchPlan::Full();
  job.threads = args.threads > 0 ? args.threads : static_cast<size_t>(core_.threads);
  job.events = &core_.events;

  request.phase = RequestPhase::kScheduled;
  Submission submission;
  submission.key = request.key;
  submission.client = request.client;
  submission.control = request.control;
  submission.state_bytes = BenchMemory(job.loaded->model->info(), job.plan, job.threads);
  if (core_.ledger.available() < submission.state_bytes) core_.registry.UnloadIdle();
  submission.work = [job = std::move(job)](Executor& executor, const std::function<bool()>& go_on) {
    return Run(job, executor, go_on);
  };
  if (!core_.scheduler.Submit(std::move(submission))) {
    core_.registry.Release(request.key);
    core_.clients.Finish(request, TooManyWait());
  }
}

}  // namespace mk::daemon
