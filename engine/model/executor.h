// Executor: what a forward pass needs beside model and sequences: the worker pool and the scratch
// memory. One forward pass runs on it at a time; it may serve any number of models in turn.

#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "engine/base/result.h"
#include "engine/parallel/scratch_arena.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

class Executor {
 public:
  // `threads` workers including the thread that calls Forward. Errors as ThreadPool::Create.
  static Result<std::unique_ptr<Executor>> Create(size_t threads) {
    Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(threads);
    if (!pool) return Fail(pool.error());
    return std::unique_ptr<Executor>(new Executor(std::move(*pool)));
  }

  ThreadPool& pool() { return *pool_; }
  const ThreadPool& pool() const { return *pool_; }
  // Reset by Forward at its start; whatever it hands out lives until the next Forward.
  ScratchArena& scratch() { return scratch_; }

 private:
  explicit Executor(std::unique_ptr<ThreadPool> pool) : pool_(std::move(pool)) {}

  std::unique_ptr<ThreadPool> pool_;
  ScratchArena scratch_;
};

}  // namespace mk
