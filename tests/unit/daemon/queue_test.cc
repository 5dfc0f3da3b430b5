// BoundedQueue, TaskThread, Outbox.

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "daemon/bounded_queue.h"
#include "daemon/outbox.h"
#include "daemon/task_thread.h"

namespace mk::daemon {
namespace {

TEST(BoundedQueue, RefusesWhatDoesNotFitAndKeepsTheValue) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_EQ(**queue.TryPop(), 1);
  EXPECT_TRUE(queue.TryPush(std::move(second)));
}

TEST(BoundedQueue, IsReadableWhileSomethingWaits) {
  BoundedQueue<int> queue(4);
  pollfd entry{queue.event().fd(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 0);
  queue.TryPush(7);
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  queue.event().Clear();
  EXPECT_EQ(poll(&entry, 1, 0), 0);
}

TEST(BoundedQueue, ProducersWaitForRoomAndNothingIsLost) {
  BoundedQueue<int> queue(3);
  constexpr int kEach = 2000;
  std::vector<std::thread> producers;
  for (int p = 0; p < 4; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) queue.Push(p * kEach + i);
    });
  }
  std::vector<int> last(4, -1);
  for (int got = 0; got < 4 * kEach;) {
    queue.event().Clear();
    while (auto value = queue.TryPop()) {
      const auto p = static_cast<size_t>(*value / kEach);
      EXPECT_EQ(*value % kEach, last[p] + 1);  // in order per producer
      last[p] = *value % kEach;
      ++got;
    }
    if (got < 4 * kEach) queue.event().Wait(1000);
  }
  for (auto& producer : producers) producer.join();
}

TEST(BoundedQueue, CloseFreesAProducerThatWaits) {
  BoundedQueue<int> queue(1);
  queue.Push(1);
  std::atomic<int> pushed{-1};
  std::thread producer([&] { pushed = queue.Push(2) ? 1 : 0; });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(pushed, -1);  // it does wait
  EXPECT_EQ(queue.size(), 1U);
  queue.Close();
  producer.join();
  EXPECT_EQ(pushed, 0);
  EXPECT_EQ(*queue.TryPop(), 1);
  EXPECT_FALSE(queue.TryPop());
}

TEST(TaskThread, RunsTasksInOrderAndRefusesTooMany) {
  std::vector<int> ran;
  std::atomic<bool> go{false};
  {
    TaskThread thread("test", 2);
    thread.Post([&] {
      while (!go) std::this_thread::yield();
      ran.push_back(0);
    });
    while (thread.waiting() > 0) std::this_thread::yield();
    EXPECT_TRUE(thread.Post([&] { ran.push_back(1); }));
    EXPECT_TRUE(thread.Post([&] { ran.push_back(2); }));
    EXPECT_FALSE(thread.Post([&] { ran.push_back(3); }));
    go = true;
    std::atomic<bool> done{false};
    while (!thread.Post([&] { done = true; })) std::this_thread::yield();
    while (!done) std::this_thread::yield();
  }
  EXPECT_EQ(ran, (std::vector<int>{0, 1, 2}));
}

TEST(Outbox, CountsOnlyTheProducersMessagesThatWereSentAndAcknowledged) {
  Outbox box;
  EXPECT_EQ(box.next_seq(), 0U);
  box.Add("accepted", 0);
  box.Add("token", 10);
  box.Add("token", 20);
  box.PopSent();
  box.PopSent();  // 0 and 1 are out, 2 waits
  box.Acknowledge(0);
  EXPECT_EQ(box.acked_messages(), 0U);
  // A client that claims to have seen what was never sent gains nothing.
  box.Acknowledge(1'000'000);
  EXPECT_EQ(box.acked_messages(), 1U);
  EXPECT_EQ(box.acked_bytes(), 10U);
  box.PopSent();
  box.Acknowledge(2);
  box.Acknowledge(1);  // late and out of order: ignored
  EXPECT_EQ(box.acked_messages(), 2U);
  EXPECT_EQ(box.acked_bytes(), 30U);
}

}  // namespace
}  // namespace mk::daemon
