#include "daemon/jobs/job_service.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/jobs/absorb_kind.h"
#include "daemon/jobs/bench_kind.h"
#include "daemon/jobs/build_kind.h"
#include "daemon/jobs/compare_kind.h"
#include "daemon/jobs/eval_kind.h"
#include "daemon/jobs/shadow_kind.h"
#include "protocol/utf8.h"

namespace mk::daemon {
namespace {

using protocol::ErrorCode;
using protocol::Fail;

// How soon saving is tried again after the disk was full, say.
constexpr auto kSaveAgain = std::chrono::seconds(3);

uint64_t NowMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(
      std::max<int64_t>(0, std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
}

protocol::JobSpec SpecOf(const protocol::Args& args) {
  protocol::JobSpec spec;
  if (const auto* verify = std::get_if<protocol::VerifyArgs>(&args)) spec.verify = *verify;
  if (const auto* build = std::get_if<protocol::BuildArgs>(&args)) spec.build = *build;
  if (const auto* bench = std::get_if<protocol::BenchArgs>(&args)) spec.bench = *bench;
  if (const auto* absorb = std::get_if<protocol::AbsorbArgs>(&args)) spec.absorb = *absorb;
  if (const auto* shadow = std::get_if<protocol::ShadowArgs>(&args)) spec.shadow = *shadow;
  if (const auto* eval = std::get_if<protocol::EvalArgs>(&args)) spec.eval = *eval;
  if (const auto* both = std::get_if<protocol::CompareArgs>(&args)) spec.compare = *both;
  return spec;
}

// The answer to the op that started the job.
protocol::Body ResultOf(const protocol::JobResult& result) {
  if (result.verify) return *result.verify;
  if (result.build) return *result.build;
  if (result.absorb) return *result.absorb;
  if (result.shadow) return *result.shadow;
  if (result.eval) return *result.eval;
  if (result.compare) return *result.compare;
  return result.bench.value_or(protocol::BenchDone());
}

protocol::Error ErrorOf(const protocol::JobRecord& record) {
  if (!record.error) return {ErrorCode::kInternal, "the job has no result", {}, {}};
  return {protocol::ErrorCodeFromName(record.error->code).value_or(ErrorCode::kInternal),
          record.error->message,
          record.error->hint,
          {}};
}

RequestPhase PhaseOfStage(const std::string& stage) {
  return stage == "load" || stage == "prepare" ? RequestPhase::kLoading : RequestPhase::kWorking;
}

// Records hold text: what cannot be written as text could not be found again.
protocol::Status CheckText(const protocol::JobSpec& spec) {
  for (const std::string& path : protocol::PathsIn(spec)) {
    if (protocol::FindInvalidUtf8(path) == std::string_view::npos) continue;
    return Fail(ErrorCode::kBadRequest,
                "the path is not UTF-8, so the job cannot be recorded: " +
                    protocol::ReplaceInvalidUtf8(path),
                "rename the file, or run the command without --detach");
  }
  return {};
}

// What jobs keep beside their records.
std::string AbsorbFolderIn(const std::string& folder) {
  return folder + "/absorb";
}

std::vector<std::unique_ptr<JobKind>> Kinds(const Core& core, EngineAccess& engine,
                                            const ReadLimit& limit, const std::string& folder) {
  std::vector<std::unique_ptr<JobKind>> kinds;
  kinds.push_back(std::make_unique<VerifyKind>(core, limit));
  kinds.push_back(std::make_unique<BuildKind>(core));
  kinds.push_back(std::make_unique<BenchKind>(core, engine));
  kinds.push_back(std::make_unique<AbsorbKind>(core, engine, AbsorbFolderIn(folder)));
  kinds.push_back(std::make_unique<ShadowKind>(core, limit));
  kinds.push_back(std::make_unique<EvalKind>(core, engine));
  kinds.push_back(std::make_unique<CompareKind>(core, engine));
  return kinds;
}

}  // namespace

JobService::JobService(Core& core, ModelService& models, const std::string& folder)
    : core_(core),
      engine_(core, models),
      runner_([&events = core.events](JobEvent event) { events.Push(std::move(event)); }),
      board_(Kinds(core, engine_, read_limit_, folder),
             {[this](JobKind& kind, const protocol::JobRecord& record) {
                return runner_.Start(kind, record.spec, record.checkpoint);
              },
              [this](uint64_t run) { runner_.Cancel(run); },
              [this](const protocol::JobRecord& record, uint64_t change) {
                writer_->Save(record, change);
              },
              [this](const std::string& id) { writer_->Remove(id); }, NowMs}) {
  ApplyConfig();
  JobStore store(folder);
  auto loaded = store.Load();
  writer_ = std::make_unique<JobWriter>(
      std::move(store), [&events = core.events](JobEvent event) { events.Push(std::move(event)); });
  if (loaded) {
    for (const std::string& warning : loaded->warnings) spdlog::warn("{}", warning);
    // A record that could not be read may know of the files.
    if (loaded->warnings.empty()) SweepAbsorbed(AbsorbFolderIn(folder), loaded->records);
    board_.Restore(std::move(loaded->records));
  } else {
    board_.SetTrouble(loaded.error().ToString());
    spdlog::error("jobs are not kept over the daemon's end: {}", board_.trouble());
  }
}

void JobService::ApplyConfig() {
  const Config& config = core_.config;
  JobLimits limits;
  limits.at_once = static_cast<size_t>(config.jobs_at_once);
  limits.keep = static_cast<size_t>(config.jobs_keep);
  limits.keep_for = config.jobs_keep_for;
  board_.SetLimits(limits);
  read_limit_.store(config.jobs_read_limit);
}

// Whether an exclusive job would have the machine for itself. Requests that wait for jobs do not
// count: they wait for this one, or for one that it waits for.
bool JobService::Quiet() const {
  return std::none_of(
      core_.clients.requests().begin(), core_.clients.requests().end(), [](const auto& entry) {
        const ClientRequest& request = *entry.second;
        const bool works = RunsInSteps(request.op) || request.op == protocol::Op::kLoad;
        return works && !request.final;
      });
}

// A client that waits for a benchmark is told at once that it cannot have it now.
std::optional<protocol::Error> JobService::RefuseExclusive(const ClientRequest& request) const {
  int64_t others = 0;
  for (const auto& [key, other] : core_.clients.requests()) {
    const bool works = protocol::InfoOf(other->op).streams && !other->final &&
                       other->op != protocol::Op::kJobAttach;
    if (works && key != request.key) ++others;
  }
  for (const auto& [id, job] : board_.jobs()) {
    // One that was told to end is as good as gone.
    const bool goes_on = !protocol::IsEnded(job->record.state) && job->stop == Job::Stop::kNone;
    if (goes_on && job->owner == 0) ++others;
  }
  if (others == 0) return std::nullopt;
  return protocol::Error{ErrorCode::kBusy,
                         "a benchmark needs the machine for itself, and " + std::to_string(others) +
                             (others == 1 ? " other request is" : " other requests are") + " open",
                         "try again when `mk status` shows none, or let it wait with --detach",
                         {{"requests", others}}};
}

void JobService::HandleWork(ClientRequest& request) {
  protocol::JobSpec spec = SpecOf(request.args);
  JobKind* kind = board_.KindFor(spec);
  if (kind->exclusive()) {
    if (auto error = RefuseExclusive(request)) {
      return core_.clients.Finish(request, std::move(*error));
    }
  }
  auto plan = kind->Prepare(spec);
  if (!plan) return core_.clients.Finish(request, std::move(plan.error()));
  request.model_path = plan->model_path;
  auto job = board_.Add(*kind, std::move(spec), *plan, core_.clients.NameOf(request), false);
  if (!job) return core_.clients.Finish(request, std::move(job.error()));
  (*job)->owner = request.key;
  Watch(**job, request);
  StartSome();
}

void JobService::HandleStart(ClientRequest& request) {
  protocol::JobSpec spec = std::get<protocol::JobStartArgs>(request.args).spec;
  JobKind* kind = board_.KindFor(spec);
  auto plan = kind->Prepare(spec);
  if (!plan) return core_.clients.Finish(request, std::move(plan.error()));
  if (auto text = CheckText(spec); !text) {
    return core_.clients.Finish(request, std::move(text.error()));
  }
  request.model_path = plan->model_path;
  auto job = board_.Add(*kind, std::move(spec), *plan, core_.clients.NameOf(request), true);
  if (!job) return core_.clients.Finish(request, std::move(job.error()));
  spdlog::info("job {}: {} of {}", (*job)->record.id, kind->name(), (*job)->record.what);
  (*job)->starters.push_back(request.key);
  StartSome();
}

void JobService::HandleAttach(ClientRequest& request) {
  auto job = FindJob(std::get<protocol::JobAttachArgs>(request.args).id);
  if (!job) return core_.clients.Finish(request, std::move(job.error()));
  Watch(**job, request);
  if (protocol::IsEnded((*job)->record.state)) return TellEnd(**job, nullptr);
  TellProgress(**job);
}

void JobService::Watch(Job& job, ClientRequest& request) {
  request.phase = job.run != 0 ? PhaseOfStage(job.record.phase) : RequestPhase::kPreparing;
  core_.clients.Send(request, protocol::Accepted{board_.QueuedBefore(job)});
  job.watchers.insert(request.key);
}

protocol::Result<Job*> JobService::FindJob(const std::string& id) {
  if (Job* job = board_.Find(id)) return job;
  return Fail(ErrorCode::kNotFound, "no job " + id, "`mk jobs` lists them");
}

void JobService::StartSome() {
  if (core_.stopping) return;
  const std::vector<Job*> changed = board_.StartSome(Quiet());
  for (Job* job : changed) {
    if (job->run == 0) {
      const protocol::Error error = ErrorOf(job->record);
      spdlog::error("job {}: {}", job->record.id, error.message);
      TellEnd(*job, &error);
      continue;
    }
    core_.metrics.Add(Counter::kJobsStarted);
    if (job->kind->exclusive() && job->owner == 0) core_.job_holds_up = true;
    TellProgress(*job);
  }
  if (!changed.empty()) TellQueue();
}

void JobService::TellQueue() {
  const auto now = Clock::now();
  for (const auto& [id, job] : board_.jobs()) {
    if (job->record.state != protocol::JobState::kQueued) continue;
    const protocol::Progress progress{"queue", board_.QueuedBefore(*job), 0, "requests"};
    for (const uint64_t key : job->watchers) {
      if (ClientRequest* request = core_.clients.Find(key)) {
        core_.clients.SendProgress(*request, progress, now);
      }
    }
  }
}

void JobService::TellProgress(const Job& job) {
  if (job.run == 0) return TellQueue();
  const protocol::JobRecord& record = job.record;
  const auto now = Clock::now();
  for (const uint64_t key : job.watchers) {
    ClientRequest* request = core_.clients.Find(key);
    if (request == nullptr) continue;
    request->phase = PhaseOfStage(record.phase);
    core_.clients.SendProgress(*request, {record.phase, record.done, record.total, record.unit},
                               now);
  }
}

// `error`: with all that is known of it; null: as recorded.
void JobService::TellEnd(Job& job, const protocol::Error* error) {
  const protocol::JobReport report = board_.ReportOf(job);
  for (const uint64_t key : std::exchange(job.watchers, {})) {
    ClientRequest* request = core_.clients.Find(key);
    if (request == nullptr) continue;
    if (request->op == protocol::Op::kJobAttach) {
      core_.clients.Finish(*request, protocol::JobAttachDone{report});
    } else if (job.record.state == protocol::JobState::kDone) {
      core_.clients.Finish(*request, ResultOf(job.record.result));
    } else {
      core_.clients.Finish(*request, error != nullptr ? *error : ErrorOf(job.record));
    }
  }
  job.owner = 0;
}

void JobService::AnswerStarters(Job& job) {
  for (const uint64_t key : std::exchange(job.starters, {})) {
    if (ClientRequest* request = core_.clients.Find(key)) {
      core_.clients.Finish(*request, protocol::JobStartDone{board_.ReportOf(job)});
    }
  }
}

void JobService::OnEvent(JobEvent event) {
  if (auto* progress = std::get_if<JobProgressed>(&event)) {
    if (Job* job = board_.OnProgress(std::move(*progress), Clock::now())) TellProgress(*job);
  } else if (auto* checkpoint = std::get_if<JobCheckpointed>(&event)) {
    board_.OnCheckpoint(std::move(*checkpoint));
  } else if (auto* ended = std::get_if<JobEnded>(&event)) {
    runner_.Join(ended->run);
    std::optional<protocol::Error> error;
    if (!ended->result) error = ended->result.error();
    Job* job = board_.OnEnded(std::move(*ended));
    if (job == nullptr) return;
    core_.metrics.Add(Counter::kJobsDone);
    if (job->kind->exclusive()) core_.job_holds_up = false;
    const bool failed = job->record.state == protocol::JobState::kFailed;
    if (job->record.detached) {
      spdlog::info("job {}: {}", job->record.id, protocol::NameOf(job->record.state));
    }
    TellEnd(*job, failed && error ? &*error : nullptr);
    board_.Prune();
    StartSome();
  } else if (auto* saved = std::get_if<JobSaved>(&event)) {
    const std::string before = board_.trouble();
    Job* job = board_.OnSaved(*saved);
    if (board_.trouble() != before && !board_.trouble().empty()) {
      spdlog::error("the record of a job is not saved: {}", board_.trouble());
    }
    if (!before.empty() && board_.trouble().empty())
      spdlog::info("records of jobs are saved again");
    if (job != nullptr) AnswerStarters(*job);
  }
}

void JobService::OnRequestEnds(ClientRequest& request, bool shutdown) {
  for (const auto& [id, job] : board_.jobs()) {
    if (job->watchers.erase(request.key) == 0) continue;
    if (job->owner != request.key) return;
    job->owner = 0;
    if (shutdown) {
      board_.Interrupt(*job);
    } else if (!board_.Cancel(*job)) {
      return;  // it has ended meanwhile
    }
    if (protocol::IsEnded(job->record.state)) TellEnd(*job, nullptr);
    return;
  }
}

void JobService::HandleList(const std::string& peer, uint64_t id) {
  protocol::JobsDone done;
  for (const Job* job : board_.InOrder()) done.jobs.push_back(board_.StatusOf(*job));
  done.trouble = board_.trouble();
  core_.clients.Answer(peer, id, protocol::Op::kJobs, std::move(done));
}

void JobService::HandleShow(const std::string& peer, uint64_t id,
                            const protocol::JobShowArgs& args) {
  auto job = FindJob(args.id);
  if (!job) return core_.clients.Answer(peer, id, protocol::Op::kJobShow, std::move(job.error()));
  core_.clients.Answer(peer, id, protocol::Op::kJobShow,
                       protocol::JobShowDone{board_.ReportOf(**job)});
}

void JobService::HandleCancel(const std::string& peer, uint64_t id,
                              const protocol::JobCancelArgs& args) {
  auto job = FindJob(args.id);
  protocol::Status cancelled = job ? board_.Cancel(**job) : Fail(job.error());
  if (!cancelled) {
    return core_.clients.Answer(peer, id, protocol::Op::kJobCancel, std::move(cancelled.error()));
  }
  core_.clients.Answer(peer, id, protocol::Op::kJobCancel,
                       protocol::JobCancelDone{board_.ReportOf(**job)});
  if (protocol::IsEnded((*job)->record.state)) TellEnd(**job, nullptr);
  TellQueue();
}

void JobService::HandleResume(const std::string& peer, uint64_t id,
                              const protocol::JobResumeArgs& args) {
  auto job = FindJob(args.id);
  protocol::Status resumed = job ? board_.Resume(**job) : Fail(job.error());
  if (!resumed) {
    return core_.clients.Answer(peer, id, protocol::Op::kJobResume, std::move(resumed.error()));
  }
  StartSome();
  core_.clients.Answer(peer, id, protocol::Op::kJobResume,
                       protocol::JobResumeDone{board_.ReportOf(**job)});
}

void JobService::HandleRemove(const std::string& peer, uint64_t id,
                              const protocol::JobRemoveArgs& args) {
  protocol::JobRemoveDone done;
  if (args.ended) done.removed = board_.RemoveEnded();
  // All or none.
  for (const std::string& one : args.ids) {
    if (auto may = board_.CheckRemovable(one); !may) {
      return core_.clients.Answer(peer, id, protocol::Op::kJobRemove, std::move(may.error()));
    }
  }
  for (const std::string& one : args.ids) {
    if (board_.Remove(one)) ++done.removed;
  }
  core_.clients.Answer(peer, id, protocol::Op::kJobRemove, std::move(done));
}

void JobService::Tick(Clock::time_point now) {
  StartSome();
  board_.Prune();
  if (now < next_save_) return;
  next_save_ = now + kSaveAgain;
  board_.SaveAgain();
}

void JobService::Interrupt() {
  for (Job* job : board_.InOrder()) {
    if (protocol::IsEnded(job->record.state)) continue;
    board_.Interrupt(*job);
    if (protocol::IsEnded(job->record.state)) TellEnd(*job, nullptr);
  }
}

void JobService::Stop() {
  runner_.Stop();
  writer_->Stop();
}

}  // namespace mk::daemon
