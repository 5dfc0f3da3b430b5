// Runs whose prompts begin alike, at the same time: what they share is read once.

#include <gtest/gtest.h>

#include <numeric>

#include "daemon/run_task.h"
#include "scheduler_fixture.h"

namespace mk::daemon {
namespace {

using namespace std::chrono_literals;
using Ids = std::vector<int32_t>;

class PrefixWaitTest : public SchedulerFixture {
 protected:
  PrefixWaitTest() {
    model_.delay = 20ms;
    model_.mutable_info().prompt_block = kPrefillBlock;
    model_.mutable_info().end_of_msg = -1;
    auto loaded = std::make_shared<LoadedModel>();
    loaded->model = std::shared_ptr<const Model>(std::shared_ptr<void>(), &model_);
    loaded->prefixes = cache_.NewShelf(loaded->model);
    loaded_ = std::move(loaded);
    SchedulerLimits limits;
    limits.prefill_target = 1us;  // a block at a time
    Start(limits);
  }
  ~PrefixWaitTest() override { scheduler_->Stop(); }

  // [0, common) and then numbers of its own, all below the vocabulary.
  static Ids Prompt(size_t length, size_t common, int32_t own = 0) {
    Ids ids(length);
    for (size_t i = 0; i < length; ++i) {
      ids[i] = static_cast<int32_t>(i * 7 + (i < common ? 0 : 1 + static_cast<size_t>(own))) % 100;
    }
    return ids;
  }

  std::shared_ptr<RequestControl> Run(uint64_t key, const Ids& ids, uint64_t window = 1'000'000,
                                      bool background = false) {
    protocol::RunArgs args;
    args.ids = ids;
    args.raw = true;
    args.max_new = 2;
    auto prepared = PrepareRun(loaded_, Precision::kExact, std::move(args));
    EXPECT_TRUE(prepared);
    Submission submission;
    submission.key = key;
    submission.client = key;
    submission.task = std::move(prepared->task);
    submission.control = std::make_shared<RequestControl>();
    submission.control->window.store(window);
    submission.control->background.store(background);
    auto control = submission.control;
    EXPECT_TRUE(scheduler_->Submit(std::move(submission)));
    return control;
  }
  uint64_t read() const { return metrics_.Get(Counter::kPrefillTokens); }
  uint64_t waits() const { return metrics_.Get(Counter::kPrefixWaits); }
  bool WaitStarted(uint64_t key) {
    return events_.WaitFor([&] { return events_.has_started(key); });
  }

  Ledger prefixes_{100'000'000};
  PrefixCache cache_{prefixes_, 10'000'000};
  std::shared_ptr<const LoadedModel> loaded_;
};

TEST_F(PrefixWaitTest, OnePromptOfTwoIsReadOnce) {
  Run(1, Prompt(640, 640));
  Run(2, Prompt(640, 640));
  ASSERT_TRUE(events_.WaitFinished(1));
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(read(), 640U);
  EXPECT_EQ(waits(), 1U);
  EXPECT_EQ(events_.ids(1), events_.ids(2));
  EXPECT_EQ(metrics_.Get(Counter::kCachedTokens), 640U);
}

TEST_F(PrefixWaitTest, WhatTwoPromptsShareIsReadOnce) {
  Run(1, Prompt(640, 500, 1));
  Run(2, Prompt(700, 500, 2));
  Run(3, Prompt(500, 500));  // ends inside of what is shared
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  EXPECT_EQ(read(), 640U + (700 - 448) + (500 - 448));
  EXPECT_EQ(waits(), 2U);
}

TEST_F(PrefixWaitTest, ALateOneWaitsOnlyForWhatIsStillToCome) {
  Run(1, Prompt(1280, 1280));
  ASSERT_TRUE(WaitStarted(1));
  while (read() < 640) std::this_thread::sleep_for(1ms);
  Run(2, Prompt(1280, 1000, 1));  // parts at 960
  ASSERT_TRUE(events_.WaitFinished(1));
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(read(), 1280U + 1280 - 960);
}

TEST_F(PrefixWaitTest, NobodyWaitsForALittle) {
  Run(1, Prompt(640, 100, 1));
  Run(2, Prompt(640, 100, 2));
  ASSERT_TRUE(events_.WaitFinished(1));
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(waits(), 0U);
  EXPECT_EQ(read(), 1280U);
}

TEST_F(PrefixWaitTest, ACancelledOneHandsOver) {
  auto first = Run(1, Prompt(960, 960));
  ASSERT_TRUE(WaitStarted(1));
  Run(2, Prompt(960, 960));
  Run(3, Prompt(960, 960));
  while (waits() < 2) std::this_thread::sleep_for(1ms);
  first->cancelled.store(true);
  scheduler_->Wake();
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  // The first one's part is lost; the second reads all, the third waits for that.
  EXPECT_LE(read(), 960U + 640);
  EXPECT_EQ(events_.ids(2), events_.ids(3));
  EXPECT_EQ(events_.ids(2).size(), 2U);
}

TEST_F(PrefixWaitTest, OneThatWaitsCanBeCancelled) {
  Run(1, Prompt(960, 960));
  auto second = Run(2, Prompt(960, 960));
  while (waits() < 1) std::this_thread::sleep_for(1ms);
  second->cancelled.store(true);
  scheduler_->Wake();
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(events_.tokens(1), 0U);  // long before the first is done
  ASSERT_TRUE(events_.WaitFinished(1));
}

TEST_F(PrefixWaitTest, NobodyWaitsForOneWhoseClientDoesNotListen) {
  Run(1, Prompt(960, 960), 1);  // pauses after its first message
  ASSERT_TRUE(WaitStarted(1));
  Run(2, Prompt(960, 960));
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(events_.tokens(2), 2U);
  EXPECT_EQ(events_.tokens(1), 0U);
}

TEST_F(PrefixWaitTest, NobodyWaitsForTheBackground) {
  Run(1, Prompt(960, 960), 1'000'000, true);
  ASSERT_TRUE(WaitStarted(1));
  Run(2, Prompt(960, 960));
  Run(3, Prompt(960, 960), 1'000'000, true);
  for (uint64_t key = 1; key <= 3; ++key) ASSERT_TRUE(events_.WaitFinished(key));
  EXPECT_EQ(waits(), 1U);  // the third, for one of the others
}

TEST_F(PrefixWaitTest, WithoutRoomForStatesEveryoneReads) {
  cache_.SetLimit(0);
  Run(1, Prompt(640, 640));
  Run(2, Prompt(640, 640));
  ASSERT_TRUE(events_.WaitFinished(1));
  ASSERT_TRUE(events_.WaitFinished(2));
  EXPECT_EQ(events_.ids(1), events_.ids(2));
  EXPECT_EQ(waits(), 0U);
}

}  // namespace
}  // namespace mk::daemon
