#include "daemon/jobs/job_board.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <utility>

namespace mk::daemon {
namespace {

using protocol::ErrorCode;
using protocol::Fail;
using protocol::JobState;

// Without those that look alike.
constexpr std::string_view kLetters = "abcdefghjkmnpqrstuvwxyz";
constexpr std::string_view kLettersAndDigits = "abcdefghjkmnpqrstuvwxyz23456789";
// A rate of less time than this says nothing.
constexpr auto kShortestRate = std::chrono::seconds(1);

uint64_t RandomNumber() {
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) == sizeof number) return number;
  return (uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
}

protocol::JobError ToRecord(const protocol::Error& error) {
  return {std::string(protocol::NameOf(error.code)), error.message, error.hint};
}

protocol::Error TheDaemonEnded(const std::string& id) {
  return {ErrorCode::kShuttingDown,
          "the daemon ended before the job did",
          "`mk jobs resume " + id + "` starts it again",
          {}};
}

}  // namespace

JobBoard::JobBoard(std::vector<std::unique_ptr<JobKind>> kinds, Actions actions)
    : kinds_(std::move(kinds)), actions_(std::move(actions)) {}

JobKind* JobBoard::KindFor(const protocol::JobSpec& spec) const {
  const std::string_view name = protocol::KindOf(spec);
  for (const auto& kind : kinds_) {
    if (kind->name() == name) return kind.get();
  }
  return nullptr;
}

void JobBoard::Restore(std::vector<protocol::JobRecord> records) {
  for (protocol::JobRecord& record : records) {
    auto job = std::make_unique<Job>();
    job->kind = KindFor(record.spec);
    if (job->kind == nullptr) continue;
    job->saved = true;
    job->record = std::move(record);
    Job& restored = *job;
    jobs_[restored.record.id] = std::move(job);
    if (!protocol::IsEnded(restored.record.state)) {
      End(restored, JobState::kInterrupted, TheDaemonEnded(restored.record.id));
    }
  }
  Prune();
}

// Random, so that an id is not used again when its job has been forgotten.
std::string JobBoard::NewId() const {
  while (true) {
    uint64_t number = RandomNumber();
    std::string id(1, kLetters[number % kLetters.size()]);
    number /= kLetters.size();
    while (id.size() < protocol::kJobIdBytes) {
      id += kLettersAndDigits[number % kLettersAndDigits.size()];
      number /= kLettersAndDigits.size();
    }
    if (jobs_.count(id) == 0) return id;
  }
}

protocol::Result<Job*> JobBoard::Add(JobKind& kind, protocol::JobSpec spec, const JobPlan& plan,
                                     std::string asked_by, bool detached) {
  if (queued() >= limits_.max_queued) {
    const size_t waiting = queued();
    return Fail(ErrorCode::kBusy, std::to_string(waiting) + " jobs wait already",
                "try again when some are done", {{"queue", static_cast<int64_t>(waiting)}});
  }
  auto made = std::make_unique<Job>();
  Job& job = *made;
  job.kind = &kind;
  job.order = ++last_order_;
  job.record.id = NewId();
  job.record.spec = std::move(spec);
  job.record.what = plan.what;
  job.record.asked_by = std::move(asked_by);
  job.record.detached = detached;
  job.record.created_ms = actions_.now_ms();
  job.record.phase = plan.progress.stage;
  job.record.total = plan.progress.total;
  job.record.unit = plan.progress.unit;
  jobs_.emplace(job.record.id, std::move(made));
  Save(job);
  return &job;
}

std::vector<Job*> JobBoard::StartSome(bool quiet) {
  std::vector<Job*> waiting;
  for (const auto& [id, job] : jobs_) {
    if (job->record.state == JobState::kQueued) waiting.push_back(job.get());
  }
  std::sort(waiting.begin(), waiting.end(),
            [](const Job* a, const Job* b) { return a->order < b->order; });
  std::vector<Job*> changed;
  for (Job* job : waiting) {
    if (running() >= limits_.at_once || exclusive_runs()) break;
    if (job->kind->exclusive()) {
      // Its turn comes when the others have ended. While requests run, others may overtake it.
      if (running() > 0) break;
      if (!quiet) continue;
    }
    StartOne(*job);
    changed.push_back(job);
  }
  return changed;
}

bool JobBoard::StartOne(Job& job) {
  protocol::JobRecord& record = job.record;
  ++record.runs;
  record.started_ms = actions_.now_ms();
  auto run = actions_.start(*job.kind, record);
  if (!run) {
    End(job, JobState::kFailed, std::move(run.error()));
    return false;
  }
  job.run = *run;
  job.stop = Job::Stop::kNone;
  job.stage_began = std::chrono::steady_clock::now();
  job.done_then = record.done;
  record.state = JobState::kRunning;
  Save(job);
  return true;
}

Job* JobBoard::Find(const std::string& id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : found->second.get();
}

Job* JobBoard::FindRun(uint64_t run) {
  for (const auto& [id, job] : jobs_) {
    if (job->run == run && run != 0) return job.get();
  }
  return nullptr;
}

std::vector<Job*> JobBoard::InOrder() const {
  std::vector<Job*> all;
  for (const auto& [id, job] : jobs_) all.push_back(job.get());
  std::stable_sort(all.begin(), all.end(), [](const Job* a, const Job* b) {
    return std::pair(a->record.created_ms, a->order) < std::pair(b->record.created_ms, b->order);
  });
  return all;
}

size_t JobBoard::running() const {
  return static_cast<size_t>(std::count_if(
      jobs_.begin(), jobs_.end(), [](const auto& entry) { return entry.second->run != 0; }));
}

size_t JobBoard::queued() const {
  return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->record.state == JobState::kQueued;
  }));
}

bool JobBoard::exclusive_runs() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    return entry.second->run != 0 && entry.second->kind->exclusive();
  });
}

size_t JobBoard::QueuedBefore(const Job& job) const {
  if (job.record.state != JobState::kQueued) return 0;
  return static_cast<size_t>(std::count_if(jobs_.begin(), jobs_.end(), [&job](const auto& entry) {
    const Job& other = *entry.second;
    return other.run != 0 || (other.record.state == JobState::kQueued && other.order < job.order);
  }));
}

protocol::Status JobBoard::Cancel(Job& job) {
  if (protocol::IsEnded(job.record.state)) {
    return Fail(ErrorCode::kBadRequest,
                "job " + job.record.id +
                    " has ended already: " + std::string(protocol::NameOf(job.record.state)),
                "`mk jobs` shows those that have not");
  }
  if (job.run == 0) {
    End(job, JobState::kCancelled, protocol::Error{ErrorCode::kCancelled, "cancelled", {}, {}});
    return {};
  }
  job.stop = Job::Stop::kCancel;
  actions_.cancel(job.run);
  return {};
}

void JobBoard::Interrupt(Job& job) {
  if (protocol::IsEnded(job.record.state)) return;
  if (job.run == 0) return End(job, JobState::kInterrupted, TheDaemonEnded(job.record.id));
  if (job.stop == Job::Stop::kNone) job.stop = Job::Stop::kInterrupt;
  actions_.cancel(job.run);
}

protocol::Status JobBoard::Resume(Job& job) {
  protocol::JobRecord& record = job.record;
  if (!protocol::IsEnded(record.state)) {
    return Fail(ErrorCode::kBadRequest,
                "job " + record.id + " is " + std::string(protocol::NameOf(record.state)),
                "`mk jobs attach " + record.id + "` shows how far it is");
  }
  if (record.state == JobState::kDone) {
    return Fail(ErrorCode::kBadRequest, "job " + record.id + " is done",
                "`mk jobs show " + record.id + "` shows its result");
  }
  if (queued() >= limits_.max_queued) {
    return Fail(ErrorCode::kBusy, std::to_string(queued()) + " jobs wait already",
                "try again when some are done");
  }
  record.state = JobState::kQueued;
  record.detached = true;
  record.error.reset();
  record.ended_ms = 0;
  record.done = record.kept;
  job.order = ++last_order_;
  job.stop = Job::Stop::kNone;
  Save(job);
  return {};
}

protocol::Status JobBoard::CheckRemovable(const std::string& id) const {
  const auto found = jobs_.find(id);
  if (found == jobs_.end())
    return Fail(ErrorCode::kNotFound, "no job " + id, "`mk jobs` lists them");
  const JobState state = found->second->record.state;
  if (protocol::IsEnded(state)) return {};
  return Fail(ErrorCode::kBusy, "job " + id + " is " + std::string(protocol::NameOf(state)),
              "`mk jobs cancel " + id + "` ends it");
}

protocol::Status JobBoard::Remove(const std::string& id) {
  protocol::Status may = CheckRemovable(id);
  if (may) Forget(id);
  return may;
}

size_t JobBoard::RemoveEnded() {
  std::vector<std::string> ended;
  for (const auto& [id, job] : jobs_) {
    if (protocol::IsEnded(job->record.state)) ended.push_back(id);
  }
  for (const std::string& id : ended) Forget(id);
  return ended.size();
}

void JobBoard::Prune() {
  const uint64_t now = actions_.now_ms();
  std::vector<const Job*> ended;
  for (const auto& [id, job] : jobs_) {
    if (protocol::IsEnded(job->record.state) && job->starters.empty()) ended.push_back(job.get());
  }
  // The latest first.
  std::sort(ended.begin(), ended.end(), [](const Job* a, const Job* b) {
    return std::pair(a->record.ended_ms, a->order) > std::pair(b->record.ended_ms, b->order);
  });
  std::vector<std::string> gone;
  for (size_t i = 0; i < ended.size(); ++i) {
    const uint64_t end = ended[i]->record.ended_ms;
    const bool old = limits_.keep_for.count() >= 0 && now > end &&
                     now - end > static_cast<uint64_t>(limits_.keep_for.count());
    if (i >= limits_.keep || old) gone.push_back(ended[i]->record.id);
  }
  for (const std::string& id : gone) Forget(id);
}

void JobBoard::Forget(const std::string& id) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return;
  job->second->kind->Forget(job->second->record);
  jobs_.erase(job);
  actions_.remove(id);
}

Job* JobBoard::OnProgress(JobProgressed event, std::chrono::steady_clock::time_point now) {
  Job* job = FindRun(event.run);
  if (job == nullptr) return nullptr;
  protocol::JobRecord& record = job->record;
  if (record.phase != event.progress.stage || job->done_then > event.progress.done) {
    job->stage_began = now;
    job->done_then = event.progress.done;
  }
  record.phase = std::move(event.progress.stage);
  record.done = event.progress.done;
  record.total = event.progress.total;
  record.unit = std::move(event.progress.unit);
  return job;
}

void JobBoard::OnCheckpoint(JobCheckpointed event) {
  Job* job = FindRun(event.run);
  if (job == nullptr) return;
  job->record.checkpoint = std::move(event.checkpoint);
  job->record.kept = event.done;
  job->record.done = std::max(job->record.done, event.done);
  Save(*job);
}

Job* JobBoard::OnEnded(JobEnded event) {
  Job* job = FindRun(event.run);
  if (job == nullptr) return nullptr;
  job->run = 0;
  if (event.result) {
    job->record.result = std::move(*event.result);
    job->record.checkpoint.clear();
    job->record.kept = 0;
    job->record.done = job->record.total;
    End(*job, JobState::kDone, std::nullopt);
  } else if (event.result.error().code != ErrorCode::kCancelled) {
    End(*job, JobState::kFailed, std::move(event.result.error()));
  } else if (job->stop == Job::Stop::kInterrupt) {
    End(*job, JobState::kInterrupted, TheDaemonEnded(job->record.id));
  } else {
    End(*job, JobState::kCancelled, protocol::Error{ErrorCode::kCancelled, "cancelled", {}, {}});
  }
  return job;
}

void JobBoard::End(Job& job, JobState state, std::optional<protocol::Error> error) {
  job.record.state = state;
  job.record.ended_ms = actions_.now_ms();
  if (error) job.record.error = ToRecord(*error);
  Save(job);
}

void JobBoard::Save(Job& job) {
  job.saved = false;
  actions_.save(job.record, ++job.change);
}

Job* JobBoard::OnSaved(const JobSaved& event) {
  Job* job = Find(event.id);
  if (job != nullptr) {
    job->tried = std::max(job->tried, event.change);
    job->save_failed = !event.status.has_value();
    job->saved = event.status.has_value() && event.change == job->change;
  }
  const bool any_failed = std::any_of(jobs_.begin(), jobs_.end(),
                                      [](const auto& entry) { return entry.second->save_failed; });
  if (!event.status) {
    trouble_ = event.status.error().ToString();
  } else if (!any_failed) {
    trouble_.clear();
  }
  return job;
}

void JobBoard::SaveAgain() {
  for (const auto& [id, job] : jobs_) {
    if (!job->saved && job->tried == job->change) Save(*job);
  }
}

protocol::JobStatus JobBoard::StatusOf(const Job& job) const {
  const protocol::JobRecord& record = job.record;
  protocol::JobStatus status;
  status.id = record.id;
  status.kind = job.kind->name();
  status.what = record.what;
  status.state = protocol::NameOf(record.state);
  status.phase = record.phase;
  if (record.state == JobState::kQueued) {
    const bool next = job.kind->exclusive() && QueuedBefore(job) == 0;
    status.phase = next ? "quiet" : "queue";
  }
  status.done = record.done;
  status.total = record.total;
  status.unit = record.unit;
  status.kept = record.kept;
  status.asked_by = record.asked_by;
  status.detached = record.detached;
  status.attached = job.watchers.size();
  status.queue = QueuedBefore(job);
  status.runs = record.runs;
  status.resumable = job.kind->resumable();
  // A newer record may be on its way: no reason to be alarmed.
  status.saved = job.saved || (job.tried > 0 && !job.save_failed);
  status.created_ms = record.created_ms;
  status.started_ms = record.started_ms;
  status.ended_ms = record.ended_ms;
  const uint64_t now = actions_.now_ms();
  status.age_ms = now > record.created_ms ? now - record.created_ms : 0;
  status.error = record.error;
  const auto took = std::chrono::steady_clock::now() - job.stage_began;
  if (job.run != 0 && took >= kShortestRate && record.done > job.done_then &&
      record.done <= record.total) {
    const double share = static_cast<double>(record.total - record.done) /
                         static_cast<double>(record.done - job.done_then);
    status.eta_ms =
        static_cast<uint64_t>(share * std::chrono::duration<double, std::milli>(took).count());
  }
  return status;
}

}  // namespace mk::daemon
