// Who has the steps when interactive requests and the background both want them. The model computes
// nothing and the scheduler's thread runs freely; what counts is the order of its steps.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "scheduler_fixture.h"

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;

class PriorityTest : public SchedulerFixture {
 protected:
  static SchedulerLimits OneAtATime() {
    SchedulerLimits limits;
    limits.max_batch = 1;
    return limits;
  }

  std::shared_ptr<RequestControl> Background(uint64_t key, uint64_t client, size_t prompt,
                                             size_t max_new, uint64_t bytes = 0) {
    Submission submission = Make(key, client, prompt, max_new, 1, bytes);
    submission.control->background.store(true);
    auto control = submission.control;
    EXPECT_TRUE(scheduler_->Submit(std::move(submission)));
    return control;
  }

  // Nothing runs until everything was submitted: an exclusive piece of work has the thread.
  void Hold() {
    Submission submission;
    submission.key = 1000;
    submission.control = std::make_shared<RequestControl>();
    submission.work = [this](Executor&,
                             const std::function<bool()>& go_on) -> Result<protocol::Body> {
      while (held_.load() && go_on()) std::this_thread::sleep_for(1ms);
      return protocol::Body(protocol::RunDone{});
    };
    ASSERT_TRUE(scheduler_->Submit(std::move(submission)));
    ASSERT_TRUE(events_.WaitFor([&] { return events_.has_started(1000); }));
  }
  void LetGo() { held_.store(false); }

  std::atomic<bool> held_{true};
};

// Longest row of steps that `key` had none of, while it and the others ran.
size_t LongestWait(const std::vector<uint64_t>& order, uint64_t key) {
  size_t longest = 0;
  size_t now = 0;
  for (const uint64_t one : order) {
    now = one == key ? 0 : now + 1;
    longest = std::max(longest, now);
  }
  return longest;
}

TEST_F(PriorityTest, ABackgroundStreamHasEveryEighthPlaceOfAFullBatch) {
  Start(OneAtATime());
  Hold();
  Background(1, 1, 1, 1000);
  Submit(2, 2, 1, 800);
  LetGo();
  ASSERT_TRUE(events_.WaitFinished(1));
  const auto order = events_.order();
  const auto end = std::find(order.rbegin(), order.rend(), 2U).base();
  const auto share = static_cast<size_t>(std::count(order.begin(), end, 1U));
  EXPECT_GE(share, 800 / kBackgroundEvery - 2);
  EXPECT_LE(share, 800 / (kBackgroundEvery - 1) + 2);
  EXPECT_LE(LongestWait({order.begin(), end}, 1), kBackgroundEvery + 1);
}

TEST_F(PriorityTest, TheBackgroundHasThePlacesThatAreFree) {
  SchedulerLimits limits;
  limits.max_batch = 3;
  Start(limits);
  Hold();
  Submit(1, 1, 1, 200);
  for (uint64_t key = 2; key < 6; ++key) Background(key, key, 1, 50);
  LetGo();
  for (uint64_t key = 1; key < 6; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  // 200 of the background's tokens found two free places in each of 100 of the 200 steps.
  size_t full = 0;
  for (const auto& step : model_.steps()) full += step.size() == 3 ? 1 : 0;
  EXPECT_GE(full, 80U);
}

TEST_F(PriorityTest, AnInteractiveStreamIsInEveryStepThatHasPlaceForIt) {
  SchedulerLimits limits;
  limits.max_batch = 2;
  Start(limits);
  Hold();
  for (uint64_t key = 1; key < 5; ++key) Background(key, key, 1, 100);
  Submit(9, 9, 1, 50);
  LetGo();
  ASSERT_TRUE(events_.WaitFinished(9));
  // Two tokens a step, one of them the interactive one's: 50 steps and what came before them.
  const auto order = events_.order();
  const auto last = std::find(order.rbegin(), order.rend(), 9U).base() - order.begin();
  EXPECT_LE(last, 2 * 50 + 20);
}

TEST_F(PriorityTest, ABackgroundPromptIsReadInEveryEighthStepBesideAStream) {
  Start();
  Hold();
  Submit(1, 1, 1, 400);
  Background(2, 2, 64 * 1000, 1);
  LetGo();
  ASSERT_TRUE(events_.WaitFinished(1));
  size_t steps = 0;
  size_t with_chunk = 0;
  for (const auto& step : model_.steps()) {
    if (step.size() > 2) ADD_FAILURE() << "too many items";
    const bool chunk = std::any_of(step.begin(), step.end(),
                                   [](const SeenItem& item) { return item.tokens >= 64; });
    const bool token = std::any_of(step.begin(), step.end(),
                                   [](const SeenItem& item) { return item.tokens == 1; });
    if (!token) continue;
    ++steps;
    if (chunk) ++with_chunk;
  }
  EXPECT_GE(with_chunk, steps / kBackgroundEvery - 2);
  EXPECT_LE(with_chunk, steps / kBackgroundEvery + 2);
}

TEST_F(PriorityTest, AnInteractivePromptGoesBeforeABackgroundOne) {
  Start();
  Hold();
  Background(1, 1, 64 * 200, 1);
  Submit(2, 2, 64 * 40, 1);
  LetGo();
  ASSERT_TRUE(events_.WaitFinished(1));
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(events_.order(), (std::vector<uint64_t>{2, 1}));
}

TEST_F(PriorityTest, AloneTheBackgroundHasEverything) {
  Start();
  Hold();
  Background(1, 1, 640, 10);
  LetGo();
  ASSERT_TRUE(events_.WaitFinished(1));
  // As an interactive prompt alone: larger pieces than one block.
  const auto steps = model_.steps();
  EXPECT_TRUE(std::any_of(steps.begin(), steps.end(),
                          [](const auto& step) { return step.front().tokens > 64; }));
}

TEST_F(PriorityTest, AModelThatOnlyTheBackgroundUsesRunsInEveryEighthStep) {
  FakeModel other;
  Start();
  Hold();
  Submit(1, 1, 1, 400);
  Submission submission = Make(2, 2, 1, 400);
  submission.task = std::make_unique<FakeTask>(other, 1, 400);
  submission.control->background.store(true);
  ASSERT_TRUE(scheduler_->Submit(std::move(submission)));
  LetGo();
  ASSERT_TRUE(events_.WaitFinished(1));
  const auto order = events_.order();
  const auto end = std::find(order.rbegin(), order.rend(), 1U).base();
  const auto share = static_cast<size_t>(std::count(order.begin(), end, 2U));
  EXPECT_GE(share, 400 / kBackgroundEvery - 2);
  EXPECT_LE(share, 400 / kBackgroundEvery + 2);
  ASSERT_TRUE(events_.WaitFinished(2));
  scheduler_->Stop();
}

TEST_F(PriorityTest, InteractiveRequestsStartFirstAndTheBackgroundEveryEighthTime) {
  Start();
  scheduler_->SetBatch(1, 1);
  Hold();
  for (uint64_t key = 1; key <= 4; ++key) Background(key, 1, 1, 1);
  for (uint64_t key = 11; key < 31; ++key) Submit(key, key, 1, 1);
  LetGo();
  for (uint64_t key = 1; key <= 4; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  auto started = events_.started();
  started.erase(started.begin());  // the exclusive one
  ASSERT_EQ(started.size(), 24U);
  std::vector<size_t> places;
  for (size_t i = 0; i < started.size(); ++i) {
    if (started[i] < 10) places.push_back(i);
  }
  EXPECT_EQ(places, (std::vector<size_t>{7, 15, 22, 23}));
}

TEST_F(PriorityTest, TheBackgroundLeavesAQuarterOfTheSequences) {
  model_.delay = 100us;
  SchedulerLimits limits;
  limits.max_active = 8;
  Start(limits);
  Hold();
  std::vector<std::shared_ptr<RequestControl>> controls;
  for (uint64_t key = 1; key <= 8; ++key) controls.push_back(Background(key, key, 1, 1'000'000));
  LetGo();
  ASSERT_TRUE(events_.WaitTokens(6, 1));
  Submit(20, 20, 1, 5);
  ASSERT_TRUE(events_.WaitFinished(20));
  EXPECT_EQ(events_.started().size(), 8U);  // the exclusive one, six of eight, the last
  controls[0]->cancelled.store(true);
  ASSERT_TRUE(events_.WaitTokens(7, 1));
}

TEST_F(PriorityTest, ABackgroundRequestThatWaitsForRoomHoldsUpNoInteractiveOne) {
  Start();
  Hold();
  Background(1, 1, 1, 5, 5000);
  LetGo();
  ASSERT_TRUE(events_.WaitNeeds(1, 1));
  for (uint64_t key = 2; key < 6; ++key) {
    Submit(key, key, 1, 5, 1, 100);
    ASSERT_TRUE(events_.WaitFinished(key));
  }
}

}  // namespace
}  // namespace mk::daemon
