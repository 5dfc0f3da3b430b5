#include "engine/parallel/thread_pool.h"

#include <algorithm>
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

// How a loop is handed out. Its tasks are cut into one run of neighbours per worker, because
// neighbours read neighbouring memory; whoever is done with a run helps with the others.
//
// `ticket_` holds the number of the loop in its upper and the runs not yet taken in its lower half.
// A worker takes a run by decrementing it with compare-exchange. That succeeds only when neither
// half changed since it was read, so a worker that was asleep for a whole loop cannot take a run of
// another one, and the loop's other fields, read between the two, are those of the loop. They
// change only while no run is in anybody's hands.
class ThreadPool::Team {
 public:
  explicit Team(size_t size) : size_(size), runs_(size) {
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
  // The number of the loop in the ticket tells apart loops whose tasks are as far.
  uint64_t progress() const {
    uint64_t sum =
        ticket_.load(std::memory_order_relaxed) + in_place_.load(std::memory_order_relaxed);
    for (const TaskRun& run : runs_) sum += run.next.load(std::memory_order_relaxed);
    return sum;
  }

  Status Run(size_t tasks, bool in_place, FunctionRef<Status(size_t, size_t)> task) {
    if (running_.exchange(true)) {
      std::fputs("ThreadPool: ParallelFor inside ParallelFor\n", stderr);
      std::abort();
    }
    const FlushDenormals flush;
    failed_.store(false, std::memory_order_relaxed);
    if (size_ == 1 || tasks == 1 || in_place) {
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
  static constexpr uint64_t kRunMask = 0xffffffff;

  // Tasks [next, end) are not taken yet.
  struct alignas(64) TaskRun {
    std::atomic<size_t> next{0};
    std::atomic<size_t> end{0};
  };

  void RunInPlace(size_t tasks, FunctionRef<Status(size_t, size_t)> task) {
    for (size_t i = 0; i < tasks && !failed_.load(std::memory_order_relaxed); ++i) {
      // Loops have one caller at a time: nobody else writes.
      in_place_.store(in_place_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      if (Status status = CallTask(task, i, 0); !status) Record(i, std::move(status.error()));
    }
  }

  void RunShared(size_t tasks, FunctionRef<Status(size_t, size_t)> task) {
    const size_t runs = std::min(tasks, size_);
    task_.store(&task, std::memory_order_relaxed);
    run_count_.store(runs, std::memory_order_relaxed);
    for (size_t r = 0; r < runs; ++r) {
      runs_[r].next.store(tasks * r / runs, std::memory_order_relaxed);
      runs_[r].end.store(tasks * (r + 1) / runs, std::memory_order_relaxed);
    }
    done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    ticket_.store(loop << 32 | runs);  // sequentially consistent: see Sleep
    if (sleeping_.load() > 0) {
      { const std::lock_guard lock(mutex_); }
      work_.notify_all();
    }
    while (TakeRun(0)) {
    }
    const auto finished = [&] { return done_.load() == runs; };
    if (!SpinUntil(may_spin_, finished)) {
      std::unique_lock lock(mutex_);
      caller_sleeps_.store(true);
      finished_.wait(lock, finished);
      caller_sleeps_.store(false);
    }
  }

  // Takes a run if there is one to take, works through it and then helps with the others.
  bool TakeRun(size_t worker) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    while ((ticket & kRunMask) != 0) {
      const auto* task = task_.load(std::memory_order_relaxed);
      const size_t runs = run_count_.load(std::memory_order_relaxed);
      if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel)) continue;
      const size_t own = runs - (ticket & kRunMask);
      for (size_t r = 0; r < runs; ++r) WorkThrough(runs_[(own + r) % runs], *task, worker);
      // The caller may return as soon as this is visible: `task` is dead after it. Sequentially
      // consistent with the store of caller_sleeps_: one of the two sees the other.
      if (done_.fetch_add(1) + 1 == runs && caller_sleeps_.load()) {
        { const std::lock_guard lock(mutex_); }
        finished_.notify_one();
      }
      return true;
    }
    return false;
  }

  void WorkThrough(TaskRun& run, FunctionRef<Status(size_t, size_t)> task, size_t worker) {
    const size_t end = run.end.load(std::memory_order_relaxed);
    while (run.next.load(std::memory_order_relaxed) < end) {
      const size_t index = run.next.fetch_add(1, std::memory_order_relaxed);
      if (index >= end || failed_.load(std::memory_order_relaxed)) return;
      if (Status status = CallTask(task, index, worker); !status) {
        Record(index, std::move(status.error()));
      }
    }
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
    const auto has_work = [this] { return (ticket_.load() & kRunMask) != 0 || stop_.load(); };
    while (true) {
      while (TakeRun(worker)) {
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
  std::vector<TaskRun> runs_;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<const FunctionRef<Status(size_t, size_t)>*> task_{nullptr};
  std::atomic<size_t> run_count_{0};
  std::atomic<bool> failed_{false};
  std::atomic<uint64_t> in_place_{0};  // tasks that the caller ran alone, ever
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

uint64_t ThreadPool::progress() const {
  return team_->progress();
}

Status ThreadPool::Run(size_t tasks, bool in_place, FunctionRef<Status(size_t, size_t)> task) {
  return team_->Run(tasks, in_place, task);
}

}  // namespace mk
