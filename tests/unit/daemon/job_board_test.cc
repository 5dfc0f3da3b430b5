// The board: what waits, what runs, what is kept.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "daemon/jobs/job_board.h"

namespace mk::daemon {
namespace {

using protocol::ErrorCode;
using protocol::JobState;

class FakeKind : public JobKind {
 public:
  explicit FakeKind(std::string_view name, bool exclusive = false)
      : name_(name), exclusive_(exclusive) {}
  std::string_view name() const override { return name_; }
  bool resumable() const override { return !exclusive_; }
  bool exclusive() const override { return exclusive_; }
  protocol::Result<JobPlan> Prepare(protocol::JobSpec&) const override { return JobPlan(); }
  protocol::Result<protocol::JobResult> Run(const protocol::JobSpec&, JobContext&) override {
    return protocol::JobResult();
  }

 private:
  const std::string_view name_;
  const bool exclusive_;
};

protocol::JobSpec Verify() {
  protocol::JobSpec spec;
  spec.verify = protocol::VerifyArgs{"/m.bin"};
  return spec;
}
protocol::JobSpec Bench() {
  protocol::JobSpec spec;
  spec.bench = protocol::BenchArgs();
  return spec;
}
protocol::Result<protocol::JobResult> Sound() {
  protocol::JobResult result;
  result.verify = protocol::VerifyDone();
  return result;
}

class JobBoardTest : public ::testing::Test {
 protected:
  JobBoard Make() {
    std::vector<std::unique_ptr<JobKind>> kinds;
    kinds.push_back(std::make_unique<FakeKind>("verify"));
    kinds.push_back(std::make_unique<FakeKind>("bench", true));
    return {std::move(kinds),
            {[this](JobKind&, const protocol::JobRecord& record) -> protocol::Result<uint64_t> {
               if (no_thread_) return protocol::Fail(ErrorCode::kOutOfMemory, "no thread");
               checkpoint_ = record.checkpoint;
               return ++last_run_;
             },
             [this](uint64_t run) { cancelled_.insert(run); },
             [this](const protocol::JobRecord& record, uint64_t change) {
               saved_[record.id] = {record, change};
             },
             [this](const std::string& id) { removed_.insert(id); }, [this] { return now_; }}};
  }

  Job* Add(JobBoard& board, const protocol::JobSpec& spec = Verify()) {
    JobPlan plan{"/m.bin", "/m.bin", {"verify", 0, 100, "bytes"}};
    auto job = board.Add(*board.KindFor(spec), spec, plan, "me", true);
    EXPECT_TRUE(job.has_value());
    return job.value_or(nullptr);
  }
  // Adds one, runs it and lets it end.
  Job* AddDone(JobBoard& board) {
    Job* job = Add(board);
    board.StartSome(true);
    return board.OnEnded({job->run, Sound()});
  }
  JobState StateOf(const std::string& id) const { return saved_.at(id).first.state; }

  uint64_t now_ = 1'000'000;
  uint64_t last_run_ = 0;
  bool no_thread_ = false;
  std::string checkpoint_;
  std::set<uint64_t> cancelled_;
  std::set<std::string> removed_;
  std::map<std::string, std::pair<protocol::JobRecord, uint64_t>> saved_;
};

TEST_F(JobBoardTest, OneRunsTheOthersWaitInOrder) {
  JobBoard board = Make();
  Job* first = Add(board);
  Job* second = Add(board);
  Job* third = Add(board);
  EXPECT_EQ(board.StartSome(true), std::vector<Job*>{first});
  EXPECT_EQ(StateOf(first->record.id), JobState::kRunning);
  EXPECT_EQ(board.QueuedBefore(*second), 1u);
  EXPECT_EQ(board.QueuedBefore(*third), 2u);
  EXPECT_TRUE(board.StartSome(true).empty());
  board.OnEnded({first->run, Sound()});
  EXPECT_EQ(board.StartSome(true), std::vector<Job*>{second});
  EXPECT_EQ(board.QueuedBefore(*third), 1u);
}

TEST_F(JobBoardTest, SeveralRunAtOnceWhereThatIsWanted) {
  JobBoard board = Make();
  JobLimits limits;
  limits.at_once = 2;
  board.SetLimits(limits);
  for (int i = 0; i < 3; ++i) Add(board);
  EXPECT_EQ(board.StartSome(true).size(), 2u);
  EXPECT_EQ(board.running(), 2u);
}

TEST_F(JobBoardTest, ExclusiveOnesRunAloneAndInQuiet) {
  JobBoard board = Make();
  JobLimits limits;
  limits.at_once = 2;
  board.SetLimits(limits);
  Job* plain = Add(board);
  Job* bench = Add(board, Bench());
  Job* later = Add(board);
  // It waits for the others to end, and nobody overtakes it.
  EXPECT_EQ(board.StartSome(true), std::vector<Job*>{plain});
  board.OnEnded({plain->run, Sound()});
  // While requests run it does not begin, but others may.
  EXPECT_EQ(board.StartSome(false), std::vector<Job*>{later});
  board.OnEnded({later->run, Sound()});
  EXPECT_EQ(board.StartSome(true), std::vector<Job*>{bench});
  Add(board);
  EXPECT_TRUE(board.StartSome(true).empty());
}

TEST_F(JobBoardTest, TheQueueIsBounded) {
  JobBoard board = Make();
  JobLimits limits;
  limits.max_queued = 2;
  board.SetLimits(limits);
  Job* waits = Add(board);
  Add(board);
  JobPlan plan;
  auto refused = board.Add(*board.KindFor(Verify()), Verify(), plan, "me", true);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kBusy);
  EXPECT_EQ(board.jobs().size(), 2u);
  // Nor can one be put back into it.
  ASSERT_TRUE(board.Cancel(*waits));
  Add(board);
  EXPECT_EQ(board.Resume(*waits).error().code, ErrorCode::kBusy);
}

TEST_F(JobBoardTest, IdsAreOfTheirFormAndDiffer) {
  JobBoard board = Make();
  std::set<std::string> ids;
  for (int i = 0; i < 60; ++i) {
    const std::string id = Add(board)->record.id;
    EXPECT_TRUE(protocol::IsJobId(id)) << id;
    EXPECT_TRUE(ids.insert(id).second) << id;
  }
}

TEST_F(JobBoardTest, OneThatWaitsIsCancelledAtOnceOneThatRunsWhenItSaysSo) {
  JobBoard board = Make();
  Job* runs = Add(board);
  Job* waits = Add(board);
  board.StartSome(true);
  ASSERT_TRUE(board.Cancel(*waits));
  EXPECT_EQ(StateOf(waits->record.id), JobState::kCancelled);
  ASSERT_TRUE(board.Cancel(*runs));
  EXPECT_EQ(runs->record.state, JobState::kRunning);
  EXPECT_EQ(cancelled_.count(runs->run), 1u);
  board.OnEnded({runs->run, protocol::Fail(ErrorCode::kCancelled, "cancelled")});
  EXPECT_EQ(StateOf(runs->record.id), JobState::kCancelled);
  EXPECT_FALSE(board.Cancel(*runs));
}

TEST_F(JobBoardTest, TheDaemonsOwnReasonsAreTold) {
  JobBoard board = Make();
  Job* job = Add(board);
  board.StartSome(true);
  board.Interrupt(*job);
  board.OnEnded({job->run, protocol::Fail(ErrorCode::kCancelled, "cancelled")});
  EXPECT_EQ(StateOf(job->record.id), JobState::kInterrupted);
  EXPECT_EQ(job->record.error->code, "shutting_down");
}

TEST_F(JobBoardTest, AnErrorIsKept) {
  JobBoard board = Make();
  Job* job = Add(board);
  board.StartSome(true);
  board.OnEnded({job->run, protocol::Fail(ErrorCode::kIoError, "broken", "mend it")});
  EXPECT_EQ(StateOf(job->record.id), JobState::kFailed);
  EXPECT_EQ(saved_[job->record.id].first.error,
            (protocol::JobError{"io_error", "broken", "mend it"}));
}

TEST_F(JobBoardTest, AJobWithoutAThreadHasFailed) {
  JobBoard board = Make();
  Job* job = Add(board);
  no_thread_ = true;
  EXPECT_EQ(board.StartSome(true), std::vector<Job*>{job});
  EXPECT_EQ(StateOf(job->record.id), JobState::kFailed);
  EXPECT_FALSE(board.busy());
}

TEST_F(JobBoardTest, WhatHadNotEndedIsInterruptedAfterARestart) {
  JobBoard before = Make();
  Job* runs = Add(before);
  Job* waits = Add(before);
  before.StartSome(true);
  before.OnCheckpoint({runs->run, "so far", 40});
  std::vector<protocol::JobRecord> records;
  for (const auto& [id, saved] : saved_) records.push_back(saved.first);
  JobBoard after = Make();
  after.Restore(records);
  for (const Job* job : {runs, waits}) {
    EXPECT_EQ(StateOf(job->record.id), JobState::kInterrupted);
    EXPECT_EQ(after.Find(job->record.id)->record.error->code, "shutting_down");
  }
  EXPECT_FALSE(after.busy());
  // It goes on where it was.
  Job* again = after.Find(runs->record.id);
  ASSERT_TRUE(after.Resume(*again));
  EXPECT_EQ(again->record.done, 40u);
  EXPECT_FALSE(again->record.error.has_value());
  after.StartSome(true);
  EXPECT_EQ(checkpoint_, "so far");
  EXPECT_EQ(again->record.runs, 2u);
  after.OnEnded({again->run, Sound()});
  EXPECT_EQ(StateOf(runs->record.id), JobState::kDone);
  EXPECT_TRUE(saved_[runs->record.id].first.checkpoint.empty());
  EXPECT_FALSE(after.Resume(*again));
}

TEST_F(JobBoardTest, OnlyWhatHasEndedIsRemoved) {
  JobBoard board = Make();
  Job* job = Add(board);
  const std::string id = job->record.id;
  EXPECT_EQ(board.Remove(id).error().code, ErrorCode::kBusy);
  EXPECT_EQ(board.Remove("nosuch").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(board.RemoveEnded(), 0u);
  ASSERT_TRUE(board.Cancel(*job));
  ASSERT_TRUE(board.Remove(id));
  EXPECT_EQ(removed_, std::set<std::string>{id});
  EXPECT_EQ(board.Find(id), nullptr);
}

TEST_F(JobBoardTest, TheLatestOfThoseThatEndedAreKept) {
  JobBoard board = Make();
  JobLimits limits;
  limits.keep = 2;
  board.SetLimits(limits);
  std::vector<std::string> ids;
  for (int i = 0; i < 4; ++i) {
    now_ += 1000;
    ids.push_back(AddDone(board)->record.id);
  }
  Job* waits = Add(board);
  board.Prune();
  EXPECT_EQ(board.Find(ids[0]), nullptr);
  EXPECT_EQ(board.Find(ids[1]), nullptr);
  EXPECT_NE(board.Find(ids[2]), nullptr);
  EXPECT_NE(board.Find(ids[3]), nullptr);
  EXPECT_EQ(board.Find(waits->record.id), waits);
  EXPECT_EQ(removed_, (std::set<std::string>{ids[0], ids[1]}));
}

TEST_F(JobBoardTest, OldOnesAreForgotten) {
  JobBoard board = Make();
  JobLimits limits;
  limits.keep_for = std::chrono::seconds(10);
  board.SetLimits(limits);
  const std::string id = AddDone(board)->record.id;
  now_ += 10'000;
  board.Prune();
  EXPECT_NE(board.Find(id), nullptr);
  now_ -= 100'000;  // a clock that jumps back makes nothing old
  board.Prune();
  EXPECT_NE(board.Find(id), nullptr);
  limits.keep_for = std::chrono::milliseconds(-1);
  board.SetLimits(limits);
  now_ += 1'000'000;
  board.Prune();
  EXPECT_NE(board.Find(id), nullptr);
  limits.keep_for = std::chrono::seconds(10);
  board.SetLimits(limits);
  board.Prune();
  EXPECT_EQ(board.Find(id), nullptr);
}

TEST_F(JobBoardTest, WhatCouldNotBeSavedIsSaidAndTriedAgain) {
  JobBoard board = Make();
  Job* job = Add(board);
  const std::string id = job->record.id;
  // Nothing was tried yet: nothing to be tried again.
  board.SaveAgain();
  EXPECT_EQ(saved_[id].second, 1u);
  board.OnSaved({id, 1, Fail(mk::ErrorCode::kIo, "disk full")});
  EXPECT_NE(board.trouble().find("disk full"), std::string::npos);
  EXPECT_FALSE(board.StatusOf(*job).saved);
  board.SaveAgain();
  EXPECT_EQ(saved_[id].second, 2u);
  // Another job's record does not mend this one.
  Job* other = Add(board);
  board.OnSaved({other->record.id, 1, Status()});
  EXPECT_FALSE(board.trouble().empty());
  board.OnSaved({id, 2, Status()});
  EXPECT_TRUE(board.trouble().empty());
  EXPECT_TRUE(board.StatusOf(*job).saved);
}

TEST_F(JobBoardTest, AnOlderRecordOnDiskIsNotTheLatest) {
  JobBoard board = Make();
  Job* job = Add(board);
  board.StartSome(true);
  board.OnSaved({job->record.id, 1, Status()});
  EXPECT_FALSE(job->saved);
  // Nothing is wrong, though: the next one is on its way.
  EXPECT_TRUE(board.StatusOf(*job).saved);
  board.OnSaved({job->record.id, 2, Status()});
  EXPECT_TRUE(job->saved);
}

TEST_F(JobBoardTest, ProgressGivesAnEstimate) {
  JobBoard board = Make();
  Job* job = Add(board);
  board.StartSome(true);
  const auto begin = std::chrono::steady_clock::now() - std::chrono::seconds(100);
  board.OnProgress({job->run, {"load", 0, 100, "bytes"}}, begin);
  EXPECT_FALSE(board.StatusOf(*job).eta_ms.has_value());
  board.OnProgress({job->run, {"load", 25, 100, "bytes"}}, begin);
  const auto status = board.StatusOf(*job);
  ASSERT_TRUE(status.eta_ms.has_value());
  // 25 took 100 s: 75 take 300 s.
  EXPECT_GE(*status.eta_ms, 300'000u);
  EXPECT_LT(*status.eta_ms, 3'000'000u);
}

}  // namespace
}  // namespace mk::daemon
