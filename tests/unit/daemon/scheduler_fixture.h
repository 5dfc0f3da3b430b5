// A scheduler with a model that computes nothing, tasks that generate from it, and what came of
// them.

#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "daemon/scheduler.h"
#include "fake_model.h"

namespace mk::daemon {

// Reads `prompt` tokens, then generates `max_new`, each a function of all tokens before it.
class FakeTask : public StepTask {
 public:
  FakeTask(const FakeModel& model, size_t prompt, size_t max_new, int32_t first = 1)
      : model_(model), prompt_(prompt, first), max_new_(max_new) {}

  const Model& model() const override { return model_; }
  Status Start() override {
    sequence_ = std::make_unique<FakeSequence>();
    return {};
  }
  bool prefilling() const override { return sequence_->length() < prompt_.size(); }
  Result<ForwardItem> NextItem(size_t max_tokens) override {
    ForwardItem item;
    item.sequence = sequence_.get();
    item.logits = logit_;
    const size_t at = sequence_->length();
    if (prefilling()) {
      size_t end = std::min(prompt_.size(), at + max_tokens);
      if (end < prompt_.size()) end = end / kPrefillBlock * kPrefillBlock;
      item.tokens = std::span(prompt_).subspan(at, end - at);
    } else {
      item.tokens = last_;
    }
    return item;
  }
  Result<StepOutcome> Accept() override {
    StepOutcome outcome;
    if (prefilling()) return outcome;
    last_[0] = static_cast<int32_t>(logit_[0]);
    protocol::TokenChunk chunk;
    chunk.index = generated_++;
    chunk.id = last_[0];
    outcome.messages.emplace_back(chunk);
    if (generated_ == max_new_) outcome.done = protocol::RunDone{};
    return outcome;
  }
  std::optional<protocol::Body> Cancelled() override {
    protocol::RunDone done;
    done.finish_reason = "cancelled";
    return done;
  }
  const Sequence* sequence() const { return sequence_.get(); }

 private:
  const FakeModel& model_;
  std::vector<int32_t> prompt_;
  size_t max_new_;
  std::unique_ptr<FakeSequence> sequence_;
  std::vector<float> logit_ = std::vector<float>(1);
  std::vector<int32_t> last_ = std::vector<int32_t>(1);
  uint32_t generated_ = 0;
};

// Collects events and lets a test wait for them.
class Events {
 public:
  void Add(SchedulerEvent event) {
    std::lock_guard lock(mutex_);
    if (auto* body = std::get_if<protocol::Body>(&event.what)) {
      if (auto* token = std::get_if<protocol::TokenChunk>(body)) {
        tokens_[event.key].push_back(token->id);
        order_.push_back(event.key);
      }
    } else if (auto* finished = std::get_if<RequestFinished>(&event.what)) {
      finished_.emplace(event.key, std::move(*finished));
    } else if (auto* needs = std::get_if<RequestNeedsRoom>(&event.what)) {
      needs_[event.key].push_back(*needs);
    } else {
      started_.push_back(event.key);
    }
    changed_.notify_all();
  }
  template <typename Condition>
  bool WaitFor(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, limit, condition);
  }
  bool WaitFinished(uint64_t key) {
    return WaitFor([&] { return finished_.count(key) > 0; });
  }
  bool WaitNeeds(uint64_t key, size_t count) {
    return WaitFor([&] { return needs_[key].size() >= count; });
  }
  std::vector<RequestNeedsRoom> needs(uint64_t key) {
    std::lock_guard lock(mutex_);
    return needs_[key];
  }
  bool WaitTokens(uint64_t key, size_t count) {
    return WaitFor([&] { return tokens_[key].size() >= count; });
  }
  size_t tokens(uint64_t key) {
    std::lock_guard lock(mutex_);
    return tokens_[key].size();
  }
  std::vector<int32_t> ids(uint64_t key) {
    std::lock_guard lock(mutex_);
    return tokens_[key];
  }
  std::vector<uint64_t> started() {
    std::lock_guard lock(mutex_);
    return started_;
  }
  // For WaitFor(), which holds the lock.
  bool has_started(uint64_t key) const {
    return std::find(started_.begin(), started_.end(), key) != started_.end();
  }
  // Whose token came when.
  std::vector<uint64_t> order() {
    std::lock_guard lock(mutex_);
    return order_;
  }
  RequestFinished Take(uint64_t key) {
    std::lock_guard lock(mutex_);
    return std::move(finished_.at(key));
  }
  const RequestFinished& finished(uint64_t key) {
    std::lock_guard lock(mutex_);
    return finished_.at(key);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::vector<int32_t>> tokens_;
  std::map<uint64_t, RequestFinished> finished_;
  std::map<uint64_t, std::vector<RequestNeedsRoom>> needs_;
  std::vector<uint64_t> started_;
  std::vector<uint64_t> order_;
};

class SchedulerFixture : public ::testing::Test {
 protected:
  void Start(SchedulerLimits limits = {}) {
    executor_ = std::move(*Executor::Create(1));
    scheduler_ = std::make_unique<Scheduler>(
        *executor_, metrics_, ledger_, [this](SchedulerEvent e) { events_.Add(std::move(e)); },
        limits);
  }
  Submission Make(uint64_t key, uint64_t client, size_t prompt, size_t max_new, int32_t first = 1,
                  uint64_t bytes = 0) {
    Submission submission;
    submission.key = key;
    submission.client = client;
    submission.task = std::make_unique<FakeTask>(model_, prompt, max_new, first);
    submission.control = std::make_shared<RequestControl>();
    submission.control->window.store(1'000'000);
    submission.state_bytes = bytes;
    return submission;
  }
  std::shared_ptr<RequestControl> Submit(uint64_t key, uint64_t client, size_t prompt,
                                         size_t max_new, int32_t first = 1, uint64_t bytes = 0,
                                         std::chrono::milliseconds timeout = {},
                                         uint64_t window = 1'000'000) {
    Submission submission = Make(key, client, prompt, max_new, first, bytes);
    submission.control->window.store(window);
    if (timeout.count() > 0) submission.deadline = Clock::now() + timeout;
    auto control = submission.control;
    EXPECT_TRUE(scheduler_->Submit(std::move(submission)));
    return control;
  }

  FakeModel model_;
  Metrics metrics_;
  Ledger ledger_{1000};
  Events events_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace mk::daemon
