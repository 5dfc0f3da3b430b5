// ThreadPool: a persistent team that runs the tasks of one loop at a time.
//
//   Status done = pool.ParallelFor(panels, [&](size_t task, size_t worker) { ... });
//
// The calling thread is worker 0 and takes part; a pool of size 1 has no threads and runs the loop
// in place. Every worker takes a run of neighbouring tasks in ascending order, because neighbours
// read neighbouring memory; one that is done helps with the runs of the others. So results must not
// depend on who runs what. Between loops the workers spin for a short bounded
// time, then sleep: an idle pool uses no CPU. Workers run with subnormals flushed to zero
// (flush_denormals.h), and so does the caller inside ParallelFor.
//
// A pool may hold more workers than there are processors; they then sleep at once instead of
// spinning, and a loop ends when its tasks are done, whether or not every worker woke up for it.
//
// Thread safety: one ParallelFor at a time, from any thread; nested calls from a task are a bug
// and end the process. No allocation and no lock in ParallelFor while the workers are awake.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "engine/base/result.h"
#include "engine/parallel/function_ref.h"

namespace mk {

class ThreadPool {
 public:
  // `size` workers including the caller, at least 1 and at most kMaxSize. kInvalidArgument beyond
  // that, kOutOfMemory when the system refuses threads.
  static Result<std::unique_ptr<ThreadPool>> Create(size_t size);
  static constexpr size_t kMaxSize = 1024;

  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Workers including the caller.
  size_t size() const;
  // Changes with every task that is begun. From any thread: whoever sees it stand still knows that
  // no loop runs, or that a task hangs.
  uint64_t progress() const;

  // Calls task(i, worker) for every i < tasks, worker < size(), and returns when all calls have
  // returned. `task` returns void or Status. After a failure no further task is started and the
  // failure of the lowest failed index is returned; an exception becomes kOutOfMemory
  // (std::bad_alloc) or kInternal with its text.
  template <typename F>
  Status ParallelFor(size_t tasks, F&& task) {
    return ParallelFor(tasks, ~uint64_t{0}, task);
  }

  // The same for tasks that take about `nanoseconds` in all: loops that are done sooner than handed
  // out stay on the calling thread.
  template <typename F>
  Status ParallelFor(size_t tasks, uint64_t nanoseconds, F&& task) {
    if constexpr (std::is_void_v<std::invoke_result_t<F&, size_t, size_t>>) {
      auto with_status = [&task](size_t index, size_t worker) -> Status {
        task(index, worker);
        return {};
      };
      return Run(tasks, nanoseconds <= kInPlace, with_status);
    } else {
      return Run(tasks, nanoseconds <= kInPlace, task);
    }
  }

  // True if `task` is the first of a worker's run in a loop of `tasks`.
  bool StartsRun(size_t task, size_t tasks) const {
    const size_t runs = std::min(tasks, size());
    const size_t run = (task * runs + tasks - 1) / tasks;
    return tasks * run / runs == task;
  }

 private:
  class Team;
  explicit ThreadPool(std::unique_ptr<Team> team);
  // Twice what it costs to wake the others from their spinning and to wait for the last of them.
  static constexpr uint64_t kInPlace = 4500;
  Status Run(size_t tasks, bool in_place, FunctionRef<Status(size_t, size_t)> task);

  std::unique_ptr<Team> team_;
};

}  // namespace mk
