// Batch: the rows of one forward pass and the sequences that they belong to.
//
// All tokens of all items are rows of one matrix, item after item. Dense products and experts see
// rows only; attention goes by item.

#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "engine/base/result.h"
#include "engine/k3/sequence.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk::k3 {

struct BatchItem {
  K3Sequence* sequence = nullptr;
  size_t first_row = 0;
  size_t tokens = 0;
  size_t position = 0;  // of the first row
};

struct Batch {
  ThreadPool& pool;
  ScratchArena& scratch;
  std::span<const BatchItem> items;
  size_t rows = 0;
  ForwardObserver* observer = nullptr;
};

// Calls body(begin, end) for ranges that cover [0, rows): on the calling thread when there are
// few, else on the pool. `body` treats every row alike and returns nothing.
template <typename Body>
Status ForRows(ThreadPool& pool, size_t rows, const Body& body) {
  constexpr size_t kFew = 8;
  if (rows <= kFew || pool.size() == 1) {
    body(size_t{0}, rows);
    return {};
  }
  const size_t tasks = std::min((rows + kFew - 1) / kFew, 4 * pool.size());
  return pool.ParallelFor(
      tasks, [&](size_t task, size_t) { body(rows * task / tasks, rows * (task + 1) / tasks); });
}

}  // namespace mk::k3
