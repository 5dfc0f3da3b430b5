// States of runs: what they leave, however they end, and that others go on from there with the same
// bits. Real models, as small as can be.

#include "daemon/run_state.h"

#include <gtest/gtest.h>

#include <tuple>

#include "daemon/run_task.h"
#include "scheduler_fixture.h"
#include "tests/unit/model/random_model.h"
#include "tests/unit/model/saved_state.h"

namespace mk::daemon {
namespace {

using test::Kind;
using Ids = std::vector<int32_t>;

struct Ended {
  RequestFinished finished;
  Ids ids;
  const RunState& state() const { return *finished.left; }
  const protocol::RunDone& done() const { return std::get<protocol::RunDone>(*finished.result); }
};

class RunStateTest : public ::testing::TestWithParam<std::tuple<Kind, Precision>> {
 protected:
  RunStateTest() : random_(std::get<0>(GetParam()), precision()) {
    auto loaded = std::make_shared<LoadedModel>();
    loaded->model = std::shared_ptr<const Model>(std::shared_ptr<void>(), &*random_);
    loaded_ = loaded;
  }
  static Precision precision() { return std::get<1>(GetParam()); }

  Ids Prompt(size_t count, uint32_t seed = 1) const {
    return test::RandomTokens(count, random_->info().vocab, seed);
  }
  static protocol::RunArgs Args(std::optional<Ids> ids, uint32_t max_new) {
    protocol::RunArgs args;
    args.raw = true;
    args.ids = std::move(ids);
    args.max_new = max_new;
    return args;
  }
  static RunStart From(std::vector<SharedState> bases, bool append = false) {
    RunStart start;
    start.bases = std::move(bases);
    start.append = append;
    start.leave_state = true;
    return start;
  }

  std::shared_ptr<RequestControl> Submit(uint64_t key, protocol::RunArgs args,
                                         const RunStart& start, uint64_t window = 1'000'000,
                                         std::optional<Clock::time_point> deadline = {}) {
    auto prepared = PrepareRun(loaded_, precision(), std::move(args), start);
    EXPECT_TRUE(prepared) << prepared.error().message;
    return Submit(key, std::move(*prepared), window, deadline);
  }
  std::shared_ptr<RequestControl> Submit(uint64_t key, PreparedRun run, uint64_t window,
                                         std::optional<Clock::time_point> deadline = {}) {
    Submission submission;
    submission.key = key;
    submission.task = std::move(run.task);
    submission.control = std::make_shared<RequestControl>();
    submission.control->window.store(window);
    submission.state_bytes = run.state_bytes;
    submission.deadline = deadline;
    auto control = submission.control;
    EXPECT_TRUE(scheduler_.Submit(std::move(submission)));
    return control;
  }
  Ended Wait(uint64_t key) {
    EXPECT_TRUE(events_.WaitFinished(key));
    return {events_.Take(key), events_.ids(key)};
  }
  Ended Run(protocol::RunArgs args, const RunStart& start) {
    const uint64_t key = next_++;
    Submit(key, std::move(args), start);
    return Wait(key);
  }

  // What somebody has who reads the prompt at once and the rest token by token.
  SharedState Read(const Ids& prompt, const Ids& rest) {
    SequenceOptions options;
    options.precision = precision();
    auto sequence = test::MakeSequence(*random_, options);
    auto state = std::make_shared<RunState>();
    state->tokens = prompt;
    const size_t vocab = random_->info().vocab;
    auto rows = test::Feed(*random_, *executor_, *sequence, prompt);
    for (const int32_t id : rest) {
      state->tokens.push_back(id);
      rows = test::Feed(*random_, *executor_, *sequence, {&id, 1});
    }
    state->logits.assign(rows.end() - static_cast<ptrdiff_t>(vocab), rows.end());
    state->sequence = std::move(sequence);
    return state;
  }
  void ExpectEqual(const RunState& a, const RunState& b) {
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_TRUE(test::SameBits(a.logits, b.logits));
    EXPECT_TRUE(test::SaveState(*random_, *a.sequence) == test::SaveState(*random_, *b.sequence));
  }

  const test::RandomModel random_;
  std::shared_ptr<const LoadedModel> loaded_;
  Metrics metrics_;
  Ledger ledger_{uint64_t{1} << 30};
  Events events_;
  uint64_t next_ = 1;
  std::unique_ptr<Executor> executor_ = std::move(*Executor::Create(1));
  std::unique_ptr<Executor> for_runs_ = std::move(*Executor::Create(2));
  Scheduler scheduler_{*for_runs_, metrics_, ledger_,
                       [this](SchedulerEvent event) { events_.Add(std::move(event)); },
                       SchedulerLimits()};
};

TEST_P(RunStateTest, ARunThatIsCutInTwoComesToTheSame) {
  for (const size_t length : {5, 64, 100}) {
    const Ids prompt = Prompt(length);
    const Ended whole = Run(Args(prompt, 12), From({}));
    EXPECT_EQ(whole.done().prefix, "cold");
    for (const uint32_t cut : {0, 1, 7, 12}) {
      const Ended first = Run(Args(prompt, cut), From({}));
      const Ended second = Run(Args(std::nullopt, 12 - cut), From({first.finished.left}, true));
      Ids ids = first.ids;
      ids.insert(ids.end(), second.ids.begin(), second.ids.end());
      EXPECT_EQ(ids, whole.ids);
      EXPECT_EQ(second.done().prefix, "live");
      EXPECT_EQ(second.done().usage.cached, length + first.ids.size());
      ExpectEqual(second.state(), whole.state());
    }
    ExpectEqual(whole.state(), *Read(prompt, whole.ids));
  }
}

TEST_P(RunStateTest, TwoGoOnFromOneAndNeitherDisturbsTheOther) {
  const Ids prompt = Prompt(70);
  const Ended base = Run(Args(prompt, 3), From({}));
  const auto before = test::SaveState(*random_, *base.state().sequence);
  Submit(100, Args(Prompt(5, 2), 9), From({base.finished.left}, true));
  Submit(101, Args(Prompt(90, 3), 9), From({base.finished.left}, true));
  const Ended a = Wait(100);
  const Ended b = Wait(101);
  ExpectEqual(a.state(), Run(Args(Prompt(5, 2), 9), From({base.finished.left}, true)).state());
  ExpectEqual(b.state(), Run(Args(Prompt(90, 3), 9), From({base.finished.left}, true)).state());
  EXPECT_TRUE(test::SaveState(*random_, *base.state().sequence) == before);
}

TEST_P(RunStateTest, TheLongestThatFitsIsTaken) {
  const Ids talk = Prompt(150);
  const auto beginning = [&](size_t count) { return Ids(talk.begin(), talk.begin() + count); };
  const SharedState shorter = Read(beginning(40), {});
  const SharedState longer = Read(beginning(90), {});
  Ids other = beginning(120);
  other[3] ^= 1;
  const SharedState foreign = Read(other, {});
  const Ended run = Run(Args(talk, 2), From({shorter, foreign, longer, shorter}));
  EXPECT_EQ(run.done().prefix, "live");
  EXPECT_EQ(run.done().usage.cached, 90U);
  EXPECT_EQ(run.done().usage.prompt_tokens, 150U);
  EXPECT_EQ(run.done().prompt_ids, talk);
  // What is known to its end needs its logits.
  auto mute = std::make_shared<RunState>(*longer);
  mute->logits.clear();
  EXPECT_EQ(Run(Args(beginning(90), 2), From({shorter, mute})).done().usage.cached, 40U);
  EXPECT_EQ(Run(Args(beginning(90), 2), From({shorter, longer})).done().usage.cached, 90U);
  EXPECT_EQ(Run(Args(beginning(39), 2), From({shorter, longer})).done().prefix, "cold");
  EXPECT_FALSE(PrepareRun(loaded_, precision(), Args(std::nullopt, 2), From({mute}, true)));
  EXPECT_FALSE(PrepareRun(loaded_, precision(), Args(std::nullopt, 2), From({longer})));
}

TEST_P(RunStateTest, WhatABaseHasReadNeedNotBeKnown) {
  const SharedState known = Read(Prompt(30), {});
  auto unknown = std::make_shared<RunState>(*known);
  unknown->tokens.assign(30, kUnknownToken);
  const Ended a = Run(Args(Prompt(20, 2), 4), From({known}, true));
  const Ended b = Run(Args(Prompt(20, 2), 4), From({unknown}, true));
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(b.state().tokens[29], kUnknownToken);
  EXPECT_EQ(b.state().tokens[30], Prompt(20, 2)[0]);
  EXPECT_TRUE(test::SameBits(a.state().logits, b.state().logits));
}

// The window keeps the run where it is until it is told to end.
TEST_P(RunStateTest, ARunThatIsEndedLeavesWhatItHasEmitted) {
  const Ids prompt = Prompt(20);
  for (const bool late : {false, true}) {
    const uint64_t key = next_++;
    const auto deadline = Clock::now() + std::chrono::milliseconds(300);
    auto control =
        Submit(key, Args(prompt, 1000), From({}), 4, late ? std::optional(deadline) : std::nullopt);
    ASSERT_TRUE(events_.WaitTokens(key, 4));
    if (!late) control->cancelled.store(true);
    scheduler_.Wake();
    const Ended ended = Wait(key);
    EXPECT_EQ(ended.finished.timed_out, late);
    EXPECT_EQ(ended.finished.result.has_value(), !late);
    if (!late) {
      EXPECT_EQ(ended.done().finish_reason, "cancelled");
    }
    ASSERT_EQ(ended.ids.size(), 4U);
    ExpectEqual(ended.state(), *Read(prompt, ended.ids));
  }
}

TEST_P(RunStateTest, AStopTokenIsNotPartOfTheState) {
  const Ids prompt = Prompt(20);
  const Ended whole = Run(Args(prompt, 6), From({}));
  RunTask::Plan plan;
  plan.loaded = loaded_;
  plan.precision = precision();
  plan.args = Args(prompt, 100);
  plan.prompt = prompt;
  plan.leave_state = true;
  plan.stop_ids = {whole.ids[5]};
  PreparedRun run;
  run.task = std::make_unique<RunTask>(std::move(plan));
  Submit(next_, std::move(run), 1000);
  const Ended ended = Wait(next_++);
  EXPECT_EQ(ended.done().finish_reason, "stop");
  const auto end = std::find(whole.ids.begin(), whole.ids.end(), whole.ids[5]);
  EXPECT_EQ(ended.ids, Ids(whole.ids.begin(), end));
  ExpectEqual(ended.state(), *Read(prompt, ended.ids));
}

TEST_P(RunStateTest, APromptThatIsNotReadToItsEndLeavesNothing) {
  auto prepared = PrepareRun(loaded_, precision(), Args(Prompt(400), 3), From({}));
  ASSERT_TRUE(prepared);
  StepTask& task = *prepared->task;
  ASSERT_TRUE(task.Start());
  ASSERT_TRUE(task.Begin());
  auto item = task.NextItem(kPrefillBlock);
  ASSERT_TRUE(item);
  ASSERT_TRUE(random_->Forward(*executor_, std::span(&*item, 1), nullptr));
  ASSERT_TRUE(task.Accept());
  EXPECT_TRUE(task.prefilling());
  EXPECT_TRUE(task.Cancelled().has_value());
  Reservation memory;
  EXPECT_EQ(task.Leave(memory), nullptr);
}

TEST_P(RunStateTest, AStateHasItsMemoryAndGivesItBack) {
  Ended run = Run(Args(Prompt(10), 100), From({}));
  const RunState& state = run.state();
  EXPECT_EQ(ledger_.used(),
            state.sequence->state_bytes() + state.tokens.size() * 4 + state.logits.size() * 4);
  run.finished.left.reset();
  EXPECT_EQ(ledger_.used(), 0U);
  RunStart none;
  EXPECT_EQ(Run(Args(Prompt(10), 10), none).finished.left, nullptr);
  EXPECT_EQ(ledger_.used(), 0U);
}

INSTANTIATE_TEST_SUITE_P(Models, RunStateTest,
                         ::testing::Values(std::tuple(Kind::kK3, Precision::kExact),
                                           std::tuple(Kind::kK3, Precision::kQ8),
                                           std::tuple(Kind::kDsv4, Precision::kExact),
                                           std::tuple(Kind::kDsv4, Precision::kBf16)));

}  // namespace
}  // namespace mk::daemon
