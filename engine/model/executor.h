// Executor: what a forward pass needs beside model and sequences: the worker pool and the scratch
// memory. One forward pass runs on it at a time; it may serve any number of models in turn.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "engine/base/result.h"
#include "engine/parallel/scratch_arena.h"
#include "engine/parallel/thread_pool.h"

namespace mk {

// What routed experts cost the forward passes of an executor, over all layers, in experts.
struct ExpertUse {
  uint64_t picks = 0;        // chosen by routers: tokens * top_k
  uint64_t reads = 0;        // read and unpacked: distinct in a layer of a pass
  uint64_t reads_alone = 0;  // the same if every item had been in a pass of its own
};

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
  // Grows with every Forward.
  ExpertUse& expert_use() { return expert_use_; }

 private:
  explicit Executor(std::unique_ptr<ThreadPool> pool) : pool_(std::move(pool)) {}

  std::unique_ptr<ThreadPool> pool_;
  ScratchArena scratch_;
  ExpertUse expert_use_;
};

}  // namespace mk
