// ThreadPool: a persistent team that runs the tasks of one loop at a time.
//
//   Status done = pool.ParallelFor(panels, [&](size_t task, size_t worker) { ... });
//
// The calling thread is worker 0 and takes part; a pool of size 1 has no threads and runs the loop
// in place. Tasks are handed out one by one in ascending order to whichever worker is free, so
// results must not depend on who runs what. Between loops the workers spin for a short bounded
// time, then sleep: an idle pool uses no CPU. Workers run with subnormals flushed to zero
// (flush_denormals.h), and so does the caller inside ParallelFor.
//
// A pool may hold more workers than there are processors; they then sleep at once instead of
// spinning, and a loop ends when its tasks are done, whether or not every worker woke up for it.
//
// Thread safety: one ParallelFor at a time, from any thread; nested calls from a task are a bug
// and end the process. No allocation and no lock in ParallelFor while the workers are awake.

#pragma once

#include <cstddef>
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

  // Calls task(i, worker) for every i < tasks (tasks < 2^32), worker < size(), and returns when
  // all calls have returned. `task` returns void or Status. After a failure no further task is
  // started and the failure of the lowest failed index is returned; an exception becomes
  // kOutOfMemory (std::bad_alloc) or kInternal with its text.
  template <typename F>
  Status ParallelFor(size_t tasks, F&& task) {
    if constexpr (std::is_void_v<std::invoke_result_t<F&, size_t, size_t>>) {
      auto with_status = [&task](size_t index, size_t worker) -> Status {
        task(index, worker);
        return {};
      };
      return Run(tasks, with_status);
    } else {
      return Run(tasks, task);
    }
  }

 private:
  class Team;
  explicit ThreadPool(std::unique_ptr<Team> team);
  Status Run(size_t tasks, FunctionRef<Status(size_t, size_t)> task);

  std::unique_ptr<Team> team_;
};

}  // namespace mk
