#include "engine/parallel/thread_pool.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace mk {
namespace {

class ThreadPoolSizes : public testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    auto pool = ThreadPool::Create(GetParam());
    ASSERT_TRUE(pool) << pool.error().ToString();
    pool_ = std::move(*pool);
  }
  std::unique_ptr<ThreadPool> pool_;
};

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolSizes, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolSizes, RunsEveryTaskOnce) {
  EXPECT_EQ(pool_->size(), GetParam());
  for (size_t tasks : {0u, 1u, 2u, 7u, 64u, 1000u}) {
    std::vector<int> runs(tasks, 0);  // each element has one writer
    ASSERT_TRUE(pool_->ParallelFor(tasks, [&](size_t i, size_t worker) {
      ASSERT_LT(worker, GetParam());
      ++runs[i];
    }));
    for (int r : runs) ASSERT_EQ(r, 1);
  }
}

// A watchdog looks at it from outside.
TEST_P(ThreadPoolSizes, ProgressShowsWithinALoopAndRestsBetweenLoops) {
  for (size_t tasks : {1u, 20u}) {
    std::set<uint64_t> seen = {pool_->progress()};
    std::mutex mutex;
    const size_t loops = 3;
    for (size_t loop = 0; loop < loops; ++loop) {
      ASSERT_TRUE(pool_->ParallelFor(tasks, [&](size_t, size_t) {
        const std::lock_guard lock(mutex);
        seen.insert(pool_->progress());
      }));
    }
    // Workers that begin tasks at the same moment may see the same number.
    EXPECT_GE(seen.size(), 1 + loops * ((tasks + GetParam() - 1) / GetParam()));
    const uint64_t rest = pool_->progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(pool_->progress(), rest);
  }
}

TEST_P(ThreadPoolSizes, ManyShortLoopsStayApart) {
  // What a loop writes is seen by the next one, whoever runs it.
  std::vector<size_t> values(37);
  std::iota(values.begin(), values.end(), size_t{0});
  constexpr size_t kLoops = 5000;
  for (size_t loop = 0; loop < kLoops; ++loop) {
    const size_t tasks = 1 + loop % values.size();
    ASSERT_TRUE(pool_->ParallelFor(
        tasks, [&](size_t i, size_t) { values[(i + loop) % values.size()] += 1; }));
  }
  size_t total = 0;
  for (size_t i = 0; i < values.size(); ++i) total += values[i] - i;
  size_t expected = 0;
  for (size_t loop = 0; loop < kLoops; ++loop) expected += 1 + loop % values.size();
  EXPECT_EQ(total, expected);
}

TEST_P(ThreadPoolSizes, WakesUpAfterSleep) {
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> sum{0};
    ASSERT_TRUE(pool_->ParallelFor(100, [&](size_t i, size_t) { sum += static_cast<int>(i); }));
    EXPECT_EQ(sum.load(), 4950);
  }
}

TEST_P(ThreadPoolSizes, CallerSleepsThroughLongTasks) {
  std::atomic<int> done{0};
  ASSERT_TRUE(pool_->ParallelFor(GetParam(), [&](size_t i, size_t) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
    ++done;
  }));
  EXPECT_EQ(done.load(), static_cast<int>(GetParam()));
}

TEST_P(ThreadPoolSizes, ReturnsTheStatusOfATaskAndGoesOn) {
  std::atomic<int> started{0};
  Status status = pool_->ParallelFor(10'000, [&](size_t i, size_t) -> Status {
    ++started;
    if (i == 5) return Fail(ErrorCode::kNumeric, "task 5");
    // Leaves the failing worker time to return.
    if (i > 5) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {};
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kNumeric);
  EXPECT_EQ(status.error().message, "task 5");
  EXPECT_LT(started.load(), 10'000);
  EXPECT_TRUE(pool_->ParallelFor(10, [](size_t, size_t) {}));
}

TEST_P(ThreadPoolSizes, ReturnsTheLowestOfSeveralFailures) {
  std::mutex mutex;
  size_t lowest = SIZE_MAX;
  Status status = pool_->ParallelFor(64, [&](size_t i, size_t) -> Status {
    {
      const std::lock_guard lock(mutex);
      lowest = std::min(lowest, i);
    }
    // Several workers are in here at once, and the highest index fails first.
    if (GetParam() > 1) std::this_thread::sleep_for(std::chrono::milliseconds(16 - i % 16));
    return Fail(ErrorCode::kIo, std::to_string(i));
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().message, std::to_string(lowest));
}

TEST_P(ThreadPoolSizes, TurnsExceptionsIntoStatus) {
  Status status = pool_->ParallelFor(50, [](size_t i, size_t) {
    if (i == 20) throw std::runtime_error("boom");
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kInternal);
  EXPECT_NE(status.error().message.find("boom"), std::string::npos);
  status = pool_->ParallelFor(50, [](size_t i, size_t) {
    if (i == 49) throw std::bad_alloc();
  });
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfMemory);
}

TEST_P(ThreadPoolSizes, MayBeUsedFromSeveralThreadsInTurn) {
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      std::atomic<int> n{0};
      EXPECT_TRUE(pool_->ParallelFor(64, [&](size_t, size_t) { ++n; }));
      EXPECT_EQ(n.load(), 64);
    }).join();
  }
}

double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_P(ThreadPoolSizes, UsesNoProcessorWhenIdle) {
  ASSERT_TRUE(pool_->ParallelFor(100, [](size_t, size_t) {}));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the spin is over long before
  const double before = ProcessorSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_LT(ProcessorSeconds() - before, 0.01);
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  for (size_t size : {size_t{0}, ThreadPool::kMaxSize + 1}) {
    auto pool = ThreadPool::Create(size);
    ASSERT_FALSE(pool);
    EXPECT_EQ(pool.error().code, ErrorCode::kInvalidArgument);
    EXPECT_FALSE(pool.error().hint.empty());
  }
}

TEST(ThreadPool, StartsAndStopsWithoutWork) {
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(ThreadPool::Create(1 + i % 8));
}

TEST(ThreadPoolDeathTest, NestedLoopsEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto pool = ThreadPool::Create(1);
        (void)(*pool)->ParallelFor(
            2, [&](size_t, size_t) { (void)(*pool)->ParallelFor(2, [](size_t, size_t) {}); });
      },
      "ParallelFor inside ParallelFor");
}

}  // namespace
}  // namespace mk
