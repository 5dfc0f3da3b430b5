// How many tokens requests may guess ahead in a step, and what they hear of its time.

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "scheduler_fixture.h"

namespace mk::daemon {
namespace {

// What a task was offered, and told.
struct Heard {
  std::mutex mutex;
  std::vector<size_t> rooms;  // of its steps behind the prompt
  std::vector<size_t> rows;   // of passes, as it was told
};

// Fills every room that it is given: with its last token and guesses, of which none is right.
class GuessingTask : public FakeTask {
 public:
  GuessingTask(const FakeModel& model, size_t max_new, Heard& heard)
      : FakeTask(model, 1, max_new), heard_(heard) {}

  Result<ForwardItem> NextItem(size_t max_tokens) override {
    const bool decodes = !prefilling();
    auto item = FakeTask::NextItem(max_tokens);
    if (!item || !decodes) return item;
    guesses_.assign(max_tokens, item->tokens.front());
    item->tokens = guesses_;
    std::lock_guard lock(heard_.mutex);
    heard_.rooms.push_back(max_tokens);
    return item;
  }
  void Took(size_t rows, double seconds) override {
    EXPECT_GE(seconds, 0);
    std::lock_guard lock(heard_.mutex);
    heard_.rows.push_back(rows);
  }
  Result<StepOutcome> Accept() override {
    auto outcome = FakeTask::Accept();
    if (outcome) outcome->drafted = guesses_.empty() ? 0 : guesses_.size() - 1;
    return outcome;
  }

 private:
  Heard& heard_;
  std::vector<int32_t> guesses_;
};

class DraftRoomTest : public SchedulerFixture {
 protected:
  void SubmitGuessing(uint64_t key, size_t max_new, Heard& heard, uint64_t window = 1'000'000) {
    Submission submission = Make(key, key, 1, max_new);
    submission.task = std::make_unique<GuessingTask>(model_, max_new, heard);
    submission.control->window.store(window);
    ASSERT_TRUE(scheduler_->Submit(std::move(submission)));
  }
};

TEST_F(DraftRoomTest, AllThatDecodeFitIntoAPassBesideAChunkOfAPrompt) {
  for (const size_t max_batch : {1, 8, 64}) {
    SchedulerLimits limits;
    limits.max_batch = max_batch;
    limits.max_active = 100;
    Start(limits);
    std::vector<Heard> heard(70);
    for (uint64_t key = 0; key < heard.size(); ++key) {
      SubmitGuessing(key + 100 * max_batch, 20, heard[key]);
    }
    Submit(99'000 + max_batch, 500, 4000, 5);
    for (uint64_t key = 0; key < heard.size(); ++key) {
      ASSERT_TRUE(events_.WaitFinished(key + 100 * max_batch));
    }
    ASSERT_TRUE(events_.WaitFinished(99'000 + max_batch));
    scheduler_.reset();
    for (const Heard& one : heard) {
      ASSERT_EQ(one.rooms.size(), 19u);
      for (const size_t room : one.rooms) {
        EXPECT_GE(room, 1u);
        EXPECT_LE(room * max_batch, kMaxForwardTokens - kPrefillBlock);
      }
      for (const size_t rows : one.rows) EXPECT_LE(rows, kMaxForwardTokens);
    }
  }
}

TEST_F(DraftRoomTest, NobodyGuessesFurtherAheadThanItsClientListens) {
  Start();
  Heard heard;
  SubmitGuessing(1, 5, heard, 5);
  ASSERT_TRUE(events_.WaitFinished(1));
  scheduler_.reset();
  // The first token comes with the prompt; the window is never acknowledged.
  EXPECT_EQ(heard.rooms, (std::vector<size_t>{4, 3, 2, 1}));
}

TEST_F(DraftRoomTest, TasksHearHowManyTokensAPassCarried) {
  Start();
  Heard heard;
  SubmitGuessing(1, 8, heard, 8);
  ASSERT_TRUE(events_.WaitFinished(1));
  scheduler_.reset();
  EXPECT_EQ(heard.rows, (std::vector<size_t>{7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(metrics_.Get(Counter::kDraftPasses), 6u);
  EXPECT_EQ(metrics_.Get(Counter::kDraftedTokens), 6u + 5 + 4 + 3 + 2 + 1);
  EXPECT_EQ(metrics_.Get(Counter::kAcceptedTokens), 0u);
}

}  // namespace
}  // namespace mk::daemon
