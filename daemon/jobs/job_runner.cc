#include "daemon/jobs/job_runner.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <utility>

#include "daemon/task_thread.h"
#include "protocol/job_record.h"

namespace mk::daemon {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr auto kProgressInterval = std::chrono::milliseconds(200);
constexpr int kNice = 10;

class Context : public JobContext {
 public:
  Context(uint64_t run, std::string checkpoint, std::shared_ptr<const std::atomic<bool>> cancelled,
          const std::function<void(JobEvent)>& post)
      : run_(run),
        checkpoint_(std::move(checkpoint)),
        cancelled_(std::move(cancelled)),
        post_(post) {}

  bool cancelled() const override { return cancelled_->load(); }

  void Report(protocol::Progress progress) override {
    {
      std::lock_guard lock(mutex_);
      const auto now = SteadyClock::now();
      const bool news = progress.stage != stage_;
      if (!news && now - reported_ < kProgressInterval) return;
      reported_ = now;
      stage_ = progress.stage;
    }
    post_(JobProgressed{run_, std::move(progress)});
  }

  void SaveCheckpoint(std::string checkpoint, uint64_t done) override {
    if (checkpoint.size() > protocol::kMaxCheckpointBytes) return;
    post_(JobCheckpointed{run_, std::move(checkpoint), done});
  }

  const std::string& checkpoint() const override { return checkpoint_; }

 private:
  const uint64_t run_;
  const std::string checkpoint_;
  const std::shared_ptr<const std::atomic<bool>> cancelled_;
  const std::function<void(JobEvent)>& post_;
  std::mutex mutex_;  // of what follows
  SteadyClock::time_point reported_;
  std::string stage_;
};

// A kind that throws has failed; the daemon lives on.
protocol::Result<protocol::JobResult> RunGuarded(JobKind& kind, const protocol::JobSpec& spec,
                                                 JobContext& context) {
  try {
    return kind.Run(spec, context);
  } catch (const std::bad_alloc&) {
    return protocol::Fail(protocol::ErrorCode::kOutOfMemory, "no memory for the job",
                          "unload a model or resume the job later");
  } catch (const std::exception& error) {
    return protocol::Fail(protocol::ErrorCode::kInternal,
                          std::string("the job threw: ") + error.what());
  }
}

}  // namespace

protocol::Result<uint64_t> JobRunner::Start(JobKind& kind, protocol::JobSpec spec,
                                            std::string checkpoint) {
  const uint64_t number = ++last_;
  Run run;
  auto body = [this, &kind, number, spec = std::move(spec), checkpoint = std::move(checkpoint),
               cancelled = run.cancelled]() mutable {
    NameThisThread("job", kNice);
    Context context(number, std::move(checkpoint), cancelled, post_);
    post_(JobEnded{number, RunGuarded(kind, spec, context)});
  };
  try {
    run.thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return protocol::Fail(protocol::ErrorCode::kOutOfMemory,
                          std::string("no thread for the job: ") + error.what(),
                          "raise the limit of processes, or resume the job later");
  }
  runs_.emplace(number, std::move(run));
  return number;
}

void JobRunner::Cancel(uint64_t run) {
  if (const auto found = runs_.find(run); found != runs_.end()) {
    found->second.cancelled->store(true);
  }
}

void JobRunner::Join(uint64_t run) {
  const auto found = runs_.find(run);
  if (found == runs_.end()) return;
  found->second.thread.join();
  runs_.erase(found);
}

void JobRunner::Stop() {
  for (auto& [number, run] : runs_) run.cancelled->store(true);
  for (auto& [number, run] : runs_) run.thread.join();
  runs_.clear();
}

}  // namespace mk::daemon
