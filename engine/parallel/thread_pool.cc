#include "engine/parallel/thread_pool.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engine/parallel/flush_denormals.h"

namespace mk {
namespace {

// How long a worker without work, or a caller whose last tasks run elsewhere, spins before it
// sleeps. Longer than the serial pieces between two loops of a forward pass, short enough to be
// nothing when a request ends.
constexpr std::chrono::microseconds kSpinTime{150};

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `ready` or until the time is up; says whether it was ready.
template <typename Ready>
bool SpinUntil(bool may_spin, Ready ready) {
  if (ready()) return true;
  if (!may_spin) return false;
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return ready();
}

Status CallTask(FunctionRef<Status(size_t, size_t)> task, size_t index, size_t worker) {
  try {
    return task(index, worker);
  } catch (const std::bad_alloc&) {
    return Fail(ErrorCode::kOutOfMemory, "out of memory in a worker");
  } catch (const std::exception& e) {
    return Fail(ErrorCode::kInternal, std::string("exception in a worker: ") + e.what());
  } catch (...) {
    return Fail(ErrorCode::kInternal, "unknown exception in a worker");
  }
}

}  // namespace

// How a loop is handed out. `ticket_` holds the number of the loop in its upper and the tasks not
// yet taken in its lower half. A worker takes a task by decrementing it with compare-exchange. That
// succeeds only when neither half changed since it was read, so a worker that was asleep for a
// whole loop cannot take a task of another one, and the loop's other fields, read between the two,
// are those of the loop. `task_` and `tasks_` change only while no task is left to take.
class ThreadPool::Team {
 public:
  explicit Team(size_t size) : size_(size) {
    const unsigned processors = std::thread::hardware_concurrency();
    may_spin_ = processors == 0 || size <= processors;
  }

  ~Team() {
    {
      const std::lock_guard lock(mutex_);
      stop_.store(true);
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Throws std::system_error; the destructor stops what was started.
  void Start() {
    threads_.reserve(size_ - 1);
    for (size_t worker = 1; worker < size_; ++worker) {
      threads_.emplace_back([this, worker] { Work(worker); });
    }
  }

  size_t size() const { return size_; }

  Status Run(size_t tasks, FunctionRef<Status(size_t, size_t)> task) {
    if (tasks >= (uint64_t{1} << 32)) {
      return Fail(ErrorCode::kInternal, "a loop of " + std::to_string(tasks) + " tasks");
    }
    if (running_.exchange(true)) {
      std::fputs("ThreadPool: ParallelFor inside ParallelFor\n", stderr);
      std::abort();
    }
    const FlushDenormals flush;
    failed_.store(false, std::memory_order_relaxed);
    if (size_ == 1 || tasks == 1) {
      RunInPlace(tasks, task);
    } else if (tasks > 0) {
      RunShared(tasks, task);
    }
    Status status;
    if (failed_.load(std::memory_order_relaxed)) status = Fail(std::move(error_));
    running_.store(false);
    return status;
  }

 private:
  static constexpr uint64_t kTaskMask = 0xffffffff;

  void RunInPlace(size_t tasks, FunctionRef<Status(size_t, size_t)> task) {
    for (size_t i = 0; i < tasks && !failed_.load(std::memory_order_relaxed); ++i) {
      if (Status status = CallTask(task, i, 0); !status) Record(i, std::move(status.error()));
    }
  }

  void RunShared(size_t tasks, FunctionRef<Status(size_t, size_t)> task) {
    task_.store(&task, std::memory_order_relaxed);
    tasks_.store(tasks, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(loop << 32 | tasks);  // sequentially consistent: see Sleep
    if (sleeping_.load() > 0) {
      { const std::lock_guard lock(mutex_); }
      work_.notify_all();
    }
    while (TakeAndRun(0)) {
    }
    const auto finished = [&] { return done_.load() == tasks; };
    if (!SpinUntil(may_spin_, finished)) {
      std::unique_lock lock(mutex_);
      caller_sleeps_.store(true);
      finished_.wait(lock, finished);
      caller_sleeps_.store(false);
    }
  }

  // Runs one task if there is one to take.
  bool TakeAndRun(size_t worker) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while ((ticket & kTaskMask) != 0) {
      const auto* task = task_.load(std::memory_order_relaxed);
      const size_t tasks = tasks_.load(std::memory_order_relaxed);
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      const size_t index = tasks - (ticket & kTaskMask);
      if (!failed_.load(std::memory_order_relaxed)) {
        if (Status status = CallTask(*task, index, worker); !status) {
          Record(index, std::move(status.error()));
        }
      }
      // The caller may return as soon as this is visible: `task` is dead after it. Sequentially
      // consistent with the store of caller_sleeps_: one of the two sees the other.
      if (done_.fetch_add(1) + 1 == tasks && caller_sleeps_.load()) {
        { const std::lock_guard lock(mutex_); }
        finished_.notify_one();
      }
      return true;
    }
    return false;
  }

  void Record(size_t index, Error error) {
    const std::lock_guard lock(error_mutex_);
    if (!failed_.load(std::memory_order_relaxed) || index < error_index_) {
      error_index_ = index;
      error_ = std::move(error);
    }
    failed_.store(true, std::memory_order_relaxed);
  }

  void Work(size_t worker) {
    const FlushDenormals flush;
    const auto has_work = [this] { return (ticket_.load() & kTaskMask) != 0 || stop_.load(); };
    while (true) {
      while (TakeAndRun(worker)) {
      }
      if (stop_.load()) return;
      if (!SpinUntil(may_spin_, has_work)) Sleep(has_work);
    }
  }

  // Either the caller sees sleeping_ > 0 after it has published a loop, and wakes this worker, or
  // this worker sees the loop before it sleeps.
  template <typename HasWork>
  void Sleep(HasWork has_work) {
    std::unique_lock lock(mutex_);
    sleeping_.fetch_add(1);
    work_.wait(lock, has_work);
    sleeping_.fetch_sub(1);
  }

  const size_t size_;
  bool may_spin_ = true;
  std::vector<std::thread> threads_;

  // The loop in progress.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<const FunctionRef<Status(size_t, size_t)>*> task_{nullptr};
  std::atomic<size_t> tasks_{0};
  std::atomic<bool> failed_{false};
  alignas(64) std::atomic<size_t> done_{0};
  std::atomic<bool> running_{false};

  // Sleeping and waking.
  alignas(64) std::atomic<size_t> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable work_;
  std::condition_variable finished_;

  // Valid while failed_.
  std::mutex error_mutex_;
  size_t error_index_ = 0;
  Error error_;
};

ThreadPool::ThreadPool(std::unique_ptr<Team> team) : team_(std::move(team)) {}

ThreadPool::~ThreadPool() = default;

Result<std::unique_ptr<ThreadPool>> ThreadPool::Create(size_t size) {
  if (size == 0 || size > kMaxSize) {
    return Fail(ErrorCode::kInvalidArgument, "cannot run with " + std::to_string(size) + " threads",
                "choose 1 to " + std::to_string(kMaxSize) + " threads");
  }
  try {
    auto team = std::make_unique<Team>(size);
    team->Start();
    return std::unique_ptr<ThreadPool>(new ThreadPool(std::move(team)));
  } catch (const std::exception& e) {
    return Fail(ErrorCode::kOutOfMemory,
                "cannot start " + std::to_string(size - 1) + " threads: " + e.what(),
                "use fewer threads, or raise the limit on processes (ulimit -u)");
  }
}

size_t ThreadPool::size() const {
  return team_->size();
}

Status ThreadPool::Run(size_t tasks, FunctionRef<Status(size_t, size_t)> task) {
  return team_->Run(tasks, task);
}

}  // namespace mk
