// The scheduler with a model that computes nothing: who takes part in which step.

#include "daemon/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "scheduler_fixture.h"

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;

class SchedulerTest : public SchedulerFixture {};

TEST_F(SchedulerTest, TwoAtOnceGetWhatTheyGetAlone) {
  Start();
  Submit(1, 1, 100, 50, 3);
  ASSERT_TRUE(events_.WaitFinished(1));
  Submit(2, 1, 70, 50, 5);
  ASSERT_TRUE(events_.WaitFinished(2));
  model_.delay = 200us;
  Submit(3, 1, 100, 50, 3);
  Submit(4, 2, 70, 50, 5);
  ASSERT_TRUE(events_.WaitFinished(3));
  ASSERT_TRUE(events_.WaitFinished(4));
  EXPECT_EQ(events_.ids(1), events_.ids(3));
  EXPECT_EQ(events_.ids(2), events_.ids(4));
  EXPECT_NE(events_.ids(1), events_.ids(2));
}

TEST_F(SchedulerTest, ALongPromptHoldsUpAStreamByOneBlockPerStep) {
  model_.delay = 200us;
  Start();
  Submit(1, 1, 1, 400);
  ASSERT_TRUE(events_.WaitTokens(1, 5));
  Submit(2, 2, 6400, 1);
  ASSERT_TRUE(events_.WaitFinished(2));
  ASSERT_TRUE(events_.WaitFinished(1));
  size_t beside = 0;
  for (const auto& step : model_.steps()) {
    if (step.size() < 2) continue;
    ++beside;
    for (const SeenItem& item : step) EXPECT_LE(item.tokens, kPrefillBlock);
  }
  EXPECT_GE(beside, 90U);  // both went on together
}

TEST_F(SchedulerTest, APromptAloneIsReadInLargerPieces) {
  Start();
  Submit(1, 1, 4096, 1);
  ASSERT_TRUE(events_.WaitFinished(1));
  size_t largest = 0;
  for (const auto& step : model_.steps()) largest = std::max(largest, step[0].tokens);
  EXPECT_EQ(largest, kMaxForwardTokens);
}

TEST_F(SchedulerTest, SlowPrefillGetsSmallPieces) {
  model_.delay = 30ms;
  SchedulerLimits limits;
  limits.prefill_target = 10ms;
  Start(limits);
  Submit(1, 1, 640, 1);
  ASSERT_TRUE(events_.WaitFinished(1));
  for (const auto& step : model_.steps()) EXPECT_LE(step[0].tokens, kPrefillBlock);
}

TEST_F(SchedulerTest, ABatchHasNoMoreThanItsLimit) {
  model_.delay = 300us;
  SchedulerLimits limits;
  limits.max_batch = 3;
  Start(limits);
  for (uint64_t key = 1; key <= 8; ++key) Submit(key, key, 1, 40);
  for (uint64_t key = 1; key <= 8; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  size_t largest = 0;
  for (const auto& step : model_.steps()) {
    size_t decoding = 0;
    for (const SeenItem& item : step) decoding += item.tokens == 1 ? 1 : 0;
    largest = std::max(largest, decoding);
  }
  // Three that decode, and one whose prompt of a single token is read beside them.
  EXPECT_LE(largest, 4U);
  EXPECT_GE(largest, 3U);
}

TEST_F(SchedulerTest, AClientWithManyRequestsDoesNotStarveOneWithOne) {
  model_.delay = 300us;
  SchedulerLimits limits;
  limits.max_batch = 2;
  limits.max_active = 32;
  Start(limits);
  for (uint64_t key = 1; key <= 20; ++key) Submit(key, 1, 1, 200);
  ASSERT_TRUE(events_.WaitTokens(1, 10));
  Submit(100, 2, 1, 50);
  ASSERT_TRUE(events_.WaitFinished(100));
  // It had half of every step: while its 50 tokens came, the 20 others together had as many.
  const auto order = events_.order();
  const auto first = std::find(order.begin(), order.end(), 100U);
  const auto last = std::find(order.rbegin(), order.rend(), 100U).base();
  EXPECT_LE(last - first, 110);
}

TEST_F(SchedulerTest, WaitingRequestsOfOneClientStartInOrder) {
  model_.delay = 100us;
  SchedulerLimits limits;
  limits.max_active = 1;
  Start(limits);
  for (uint64_t key = 1; key <= 6; ++key) Submit(key, 1, 1, 3);
  ASSERT_TRUE(events_.WaitFinished(6));
  EXPECT_EQ(events_.started(), (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(SchedulerTest, CancelStopsWithinOneToken) {
  model_.delay = 2ms;
  Start();
  auto control = Submit(1, 1, 1, 100'000);
  ASSERT_TRUE(events_.WaitTokens(1, 3));
  control->cancelled.store(true);
  const size_t had = events_.tokens(1);
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_LE(events_.tokens(1), had + 2);  // the one in flight, and one that raced with the flag
  const auto& finished = events_.finished(1);
  ASSERT_TRUE(finished.result);
  EXPECT_EQ(std::get<protocol::RunDone>(*finished.result).finish_reason, "cancelled");
}

TEST_F(SchedulerTest, CancelStopsInsideAPrompt) {
  model_.delay = 5ms;
  Start();
  auto control = Submit(1, 1, 64 * 2000, 10);
  while (control->prompt_done.load() < 128) std::this_thread::sleep_for(1ms);
  control->cancelled.store(true);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_LT(control->prompt_done.load(), 64U * 2000U);
}

TEST_F(SchedulerTest, ARequestThatIsFarAheadPausesAndGoesOnWhenAcknowledged) {
  Start();
  auto control = Submit(1, 1, 1, 100, 1, 0, 0ms, 10);
  Submit(2, 2, 1, 100);
  ASSERT_TRUE(events_.WaitFinished(2));  // nobody waits for the slow one
  std::this_thread::sleep_for(50ms);
  const size_t paused_at = events_.tokens(1);
  EXPECT_EQ(paused_at, 10U);
  const auto steps = model_.steps().size();
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(model_.steps().size(), steps);  // and the thread does not spin
  control->acked_messages.store(10);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitTokens(1, 20));
  control->acked_messages.store(100);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(1));
}

TEST_F(SchedulerTest, ARequestPausesWhenItsUnacknowledgedBytesAreMany) {
  const size_t cost = MessageCost(protocol::TokenChunk{});
  SchedulerLimits limits;
  limits.window_bytes = 10 * cost;
  Start(limits);
  auto control = Submit(1, 1, 1, 100);
  ASSERT_TRUE(events_.WaitTokens(1, 10));
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(events_.tokens(1), 10U);
  control->acked_bytes.store(100 * cost);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(1));
}

TEST_F(SchedulerTest, SequencesThatExistAtOnceAreLimited) {
  model_.delay = 1ms;
  SchedulerLimits limits;
  limits.max_active = 2;
  Start(limits);
  auto first = Submit(1, 1, 1, 100'000);
  Submit(2, 2, 1, 100'000);
  Submit(3, 3, 1, 5);
  ASSERT_TRUE(events_.WaitTokens(1, 10));
  EXPECT_EQ(events_.started().size(), 2U);
  first->cancelled.store(true);
  ASSERT_TRUE(events_.WaitFinished(3));
}

TEST_F(SchedulerTest, SubmissionsBeyondTheQueueAreRefused) {
  model_.delay = 1s;  // the thread is in a step meanwhile
  SchedulerLimits limits;
  limits.max_waiting = 3;
  Start(limits);
  Submit(1, 1, 1, 1);
  ASSERT_TRUE(events_.WaitFor([&] { return events_.has_started(1); }));
  std::this_thread::sleep_for(20ms);  // from there to the step
  for (uint64_t key = 2; key <= 4; ++key) Submit(key, key, 1, 1);
  Submission one_more;
  one_more.key = 5;
  one_more.task = std::make_unique<FakeTask>(model_, 1, 1);
  one_more.control = std::make_shared<RequestControl>();
  EXPECT_FALSE(scheduler_->Submit(std::move(one_more)));
  for (uint64_t key = 1; key <= 4; ++key) ASSERT_TRUE(events_.WaitFinished(key));
}

TEST_F(SchedulerTest, AWindowOfOneLetsOneMessageOutAtATime) {
  Start();
  Submission submission;
  submission.key = 1;
  submission.client = 1;
  submission.task = std::make_unique<FakeTask>(model_, 1, 5);
  submission.control = std::make_shared<RequestControl>();
  submission.control->window.store(1);
  auto control = submission.control;
  ASSERT_TRUE(scheduler_->Submit(std::move(submission)));
  for (uint64_t acked = 0; acked < 5; ++acked) {
    ASSERT_TRUE(events_.WaitTokens(1, acked + 1));
    std::this_thread::sleep_for(5ms);
    EXPECT_EQ(events_.tokens(1), acked + 1);
    control->acked_messages.store(acked + 1);
    control->acked_bytes.store(1000 * (acked + 1));
    scheduler_->Wake();
  }
  ASSERT_TRUE(events_.WaitFinished(1));
}

TEST_F(SchedulerTest, DeadlineEndsARequestThatIsPaused) {
  Start();
  Submit(1, 1, 1, 1000, 1, 0, 100ms, 1);
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_TRUE(events_.finished(1).timed_out);
  EXPECT_FALSE(events_.finished(1).result);
}

TEST_F(SchedulerTest, MemoryIsReservedWhileARequestRunsAndGivenBack) {
  model_.delay = 100us;
  Start();
  Submit(1, 1, 1, 50, 1, 700);
  Submit(2, 2, 1, 50, 1, 700);  // must wait for the first
  ASSERT_TRUE(events_.WaitTokens(1, 1));
  EXPECT_EQ(ledger_.used(MemoryUse::kSequences), 700U);
  EXPECT_EQ(events_.tokens(2), 0U);
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(ledger_.used(), 0U);
  EXPECT_TRUE(events_.finished(2).result);
}

TEST_F(SchedulerTest, ARequestWithoutRoomAsksForItAndWaits) {
  Start();
  auto control = Submit(1, 1, 1, 5, 1, 5000);
  ASSERT_TRUE(events_.WaitNeeds(1, 1));
  EXPECT_EQ(events_.needs(1).back().bytes, 5000U);
  EXPECT_FALSE(events_.needs(1).back().others_run);
  ledger_.SetBudget(5000);
  control->needs_room.store(false);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_TRUE(events_.finished(1).result);
  EXPECT_EQ(events_.needs(1).size(), 1U);
}

TEST_F(SchedulerTest, RoomIsAskedForAgainWhenItWasTakenOrAnotherEnded) {
  model_.delay = 100us;
  Start();
  Submit(1, 1, 1, 50, 1, 700);
  ASSERT_TRUE(events_.WaitTokens(1, 1));
  auto control = Submit(2, 2, 1, 5, 1, 5000);
  ASSERT_TRUE(events_.WaitNeeds(2, 1));
  EXPECT_TRUE(events_.needs(2).front().others_run);
  ASSERT_TRUE(events_.WaitFinished(1));
  ASSERT_TRUE(events_.WaitNeeds(2, 2));
  EXPECT_FALSE(events_.needs(2).back().others_run);
  control->needs_room.store(false);  // made, and taken by somebody else
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitNeeds(2, 3));
  control->cancelled.store(true);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_FALSE(events_.finished(2).result);
}

TEST_F(SchedulerTest, ALargeRequestThatWaitsForRoomIsNotPassedOver) {
  model_.delay = 200us;
  Start();
  auto running = Submit(1, 1, 1, 1'000'000, 1, 500);
  ASSERT_TRUE(events_.WaitTokens(1, 1));
  Submit(2, 2, 1, 5, 1, 600);
  ASSERT_TRUE(events_.WaitNeeds(2, 1));
  for (uint64_t key = 3; key < 9; ++key) Submit(key, key, 1, 5, 1, 100);  // they would fit
  ASSERT_TRUE(events_.WaitTokens(1, events_.tokens(1) + 50));
  EXPECT_EQ(events_.started(), std::vector<uint64_t>{1});
  running->cancelled.store(true);
  for (uint64_t key = 2; key < 9; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  EXPECT_EQ(events_.started()[1], 2U);
}

TEST_F(SchedulerTest, ABadItemFailsAloneAndItsNeighboursGoOn) {
  model_.delay = 1ms;
  Start();
  Submit(1, 1, 1, 30);
  ASSERT_TRUE(events_.WaitTokens(1, 3));
  Submit(2, 2, 4, 3, -1);  // the model refuses the token
  ASSERT_TRUE(events_.WaitFinished(2));
  ASSERT_FALSE(events_.finished(2).result);
  EXPECT_EQ(events_.finished(2).result.error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_TRUE(events_.finished(1).result);
  EXPECT_EQ(events_.tokens(1), 30U);
}

TEST_F(SchedulerTest, AfterANumericErrorTheNextRequestWorks) {
  Start();
  Submit(1, 1, 1, 3, FakeModel::kNumericToken);
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_EQ(events_.finished(1).result.error().code, ErrorCode::kNumeric);
  Submit(2, 1, 1, 3);
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_TRUE(events_.finished(2).result);
}

TEST_F(SchedulerTest, StopEndsEveryRequestWithAnEvent) {
  model_.delay = 1ms;
  Start();
  for (uint64_t key = 1; key <= 5; ++key) Submit(key, key, 1, 100'000);
  ASSERT_TRUE(events_.WaitTokens(1, 2));
  scheduler_->Stop();
  for (uint64_t key = 1; key <= 5; ++key) {
    ASSERT_TRUE(events_.WaitFinished(key));
    EXPECT_EQ(events_.finished(key).result.error().code, ErrorCode::kCancelled);
  }
  EXPECT_EQ(ledger_.used(), 0U);
}

// Work that wants the executor for itself: runs until `release` is set or it is told to end.
class Alone {
 public:
  Submission Make(uint64_t key, uint64_t bytes = 0) {
    Submission submission;
    submission.key = key;
    submission.control = std::make_shared<RequestControl>();
    submission.state_bytes = bytes;
    submission.work = [this](Executor& executor,
                             const std::function<bool()>& go_on) -> Result<protocol::Body> {
      EXPECT_EQ(executor.pool().size(), 1U);
      while (!release) {
        if (!go_on()) return Fail(ErrorCode::kCancelled, "told to end");
        std::this_thread::sleep_for(1ms);
      }
      return protocol::Body(protocol::BenchDone{});
    };
    return submission;
  }
  std::atomic<bool> release{false};
};

TEST_F(SchedulerTest, ExclusiveWorkWaitsForWhatRunsAndHoldsUpWhatComes) {
  model_.delay = 1ms;
  Start();
  Submit(1, 1, 1, 200);
  ASSERT_TRUE(events_.WaitTokens(1, 1));
  Alone alone;
  ASSERT_TRUE(scheduler_->Submit(alone.Make(2)));
  Submit(3, 2, 1, 5);
  ASSERT_TRUE(events_.WaitFor([&] { return events_.has_started(2); }));
  // The first has ended by itself, the third has not begun.
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_EQ(events_.tokens(1), 200U);
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(events_.started(), (std::vector<uint64_t>{1, 2}));
  alone.release = true;
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_TRUE(events_.finished(2).result);
  ASSERT_TRUE(events_.WaitFinished(3));
  EXPECT_EQ(events_.tokens(3), 5U);
}

TEST_F(SchedulerTest, ExclusiveWorkIsCancelled) {
  Start();
  Alone alone;
  Submission submission = alone.Make(1, 10);
  const auto control = submission.control;
  ASSERT_TRUE(scheduler_->Submit(std::move(submission)));
  ASSERT_TRUE(events_.WaitFor([&] { return events_.has_started(1); }));
  EXPECT_EQ(ledger_.used(), 10U);
  control->cancelled.store(true);
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_EQ(events_.finished(1).result.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(ledger_.used(), 0U);
  Submit(2, 1, 1, 3);
  EXPECT_TRUE(events_.WaitFinished(2));
}

TEST_F(SchedulerTest, ThoseWhoWaitForExclusiveWorkMayLeave) {
  Start();
  Alone alone;
  ASSERT_TRUE(scheduler_->Submit(alone.Make(1)));
  ASSERT_TRUE(events_.WaitFor([&] { return events_.has_started(1); }));
  const auto control = Submit(2, 1, 1, 3);
  Submit(3, 1, 1, 3, 1, 0, 20ms);
  control->cancelled.store(true);
  ASSERT_TRUE(events_.WaitFinished(2));
  ASSERT_TRUE(events_.WaitFinished(3));
  EXPECT_TRUE(events_.finished(3).timed_out);
  EXPECT_EQ(events_.started(), std::vector<uint64_t>{1});
  scheduler_->Stop();
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_EQ(events_.finished(1).result.error().code, ErrorCode::kCancelled);
}

TEST_F(SchedulerTest, ExclusiveWorkThatCannotFitAsksForRoom) {
  Start();
  Alone alone;
  Submission submission = alone.Make(1, 5000);
  const auto control = submission.control;
  ASSERT_TRUE(scheduler_->Submit(std::move(submission)));
  ASSERT_TRUE(events_.WaitNeeds(1, 1));
  EXPECT_FALSE(events_.needs(1).back().others_run);
  control->cancelled.store(true);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(1));
  EXPECT_FALSE(events_.finished(1).result);
}

TEST(FairPicker, EveryClientHasOneBeforeAnyHasTwo) {
  FairPicker picker;
  const std::vector<uint64_t> clients = {1, 1, 1, 2, 3};
  auto picked = picker.Pick(clients, 4);
  EXPECT_EQ(std::vector<size_t>(picked.begin(), picked.end()), (std::vector<size_t>{0, 3, 4, 1}));
  // Client 1 was served last: 2 begins.
  picked = picker.Pick(clients, 2);
  EXPECT_EQ(std::vector<size_t>(picked.begin(), picked.end()), (std::vector<size_t>{3, 4}));
  picked = picker.Pick(clients, 10);
  EXPECT_EQ(picked.size(), 5U);
  EXPECT_TRUE(picker.Pick({}, 3).empty());
  EXPECT_TRUE(picker.Pick(clients, 0).empty());
}

TEST(FairPicker, OverManyStepsAllClientsGetTheSame) {
  FairPicker picker;
  std::vector<uint64_t> clients;
  for (int i = 0; i < 9; ++i) clients.push_back(7);
  for (uint64_t client = 10; client < 15; ++client) clients.push_back(client);
  std::map<uint64_t, int> served;
  for (int step = 0; step < 600; ++step) {
    for (const size_t i : picker.Pick(clients, 4)) ++served[clients[i]];
  }
  for (const auto& [client, times] : served) EXPECT_EQ(times, 400) << client;
}

}  // namespace
}  // namespace mk::daemon
