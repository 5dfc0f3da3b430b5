// Batch: the rows of one forward pass and the sequences that they belong to.
//
// All tokens of all items are rows of one matrix, item after item. Dense products and experts see
// rows only; attention goes by item.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/base/result.h"
#include "engine/kernels/matmul.h"
#include "engine/model/executor.h"
#include "engine/model/model.h"

namespace mk {

// What does not depend on the architecture.
struct BatchRows {
  ThreadPool& pool;
  ScratchArena& scratch;
  size_t rows = 0;
  ForwardObserver* observer = nullptr;
  Precision precision = Precision::kExact;  // of all items
  // About what the pieces of a layer between its products take per row.
  uint64_t row_nanoseconds = 1000;
  ExpertUse* expert_use = nullptr;             // counts what layers of experts read; may be null
  ExpertAccess experts = ExpertAccess::kWait;  // of all items
  std::span<uint64_t> shadowed = {};  // [rows] with kShadow: counts picks that shadows serve
};

// `S`: the sequences of an architecture.
template <typename S>
struct BatchItemOf {
  size_t index = 0;  // of the item in the call of Forward
  S* sequence = nullptr;
  size_t first_row = 0;
  size_t tokens = 0;
  size_t position = 0;  // of the first row
  bool draft = false;   // may be taken back
};

template <typename S>
struct BatchOf : BatchRows {
  std::span<const BatchItemOf<S>> items;
};

// Whether ForwardObserver::OnOutput is wanted of any item.
template <typename Item, typename Batch>
bool OutputWanted(const Batch& batch) {
  return batch.observer != nullptr &&
         std::any_of(batch.items.begin(), batch.items.end(),
                     [&](const Item& item) { return batch.observer->WantsOutput(item.index); });
}

// Calls it for the items that want it; `rows`: [batch.rows][width].
template <typename Item, typename Batch>
void SendOutput(const Batch& batch, const float* rows, size_t width) {
  for (const Item& item : batch.items) {
    if (!batch.observer->WantsOutput(item.index)) continue;
    batch.observer->OnOutput(item.index, item.position,
                             {rows + item.first_row * width, item.tokens * width});
  }
}

// BatchRows::shadowed of a batch.
inline std::span<uint64_t> ShadowCounts(ScratchArena& scratch, ExpertAccess experts, size_t rows) {
  if (experts == ExpertAccess::kWait) return {};
  const std::span<uint64_t> counts = scratch.Allocate<uint64_t>(rows);
  std::fill(counts.begin(), counts.end(), 0);
  return counts;
}

// Adds up what shadows served of every item.
template <typename Item, typename Batch>
void TellShadowed(const Batch& batch, std::span<ForwardItem> items) {
  if (batch.shadowed.empty()) return;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = batch.items[i];
    for (const uint64_t picks : batch.shadowed.subspan(item.first_row, item.tokens)) {
      items[i].shadowed += picks;
    }
  }
}

inline Q8Rows NewQ8Rows(ScratchArena& scratch, size_t rows, size_t groups) {
  return {scratch.Allocate<int8_t>(rows * groups * kQ8Group).data(),
          scratch.Allocate<float>(rows * groups).data(),
          scratch.Allocate<int32_t>(rows * groups).data(), groups, groups};
}

// Rows that products read: floats, and in q8 the same as bytes. Whoever writes the floats of a row
// calls Seal for it before a product reads them.
struct Activations {
  // Scratch for `batch.rows` rows of `width`. Wide ones have two bytes per value in q8.
  static Activations New(const BatchRows& batch, size_t width) {
    float* values = batch.scratch.Allocate<float>(batch.rows * width).data();
    return Of(batch, values, width, width, batch.rows);
  }
  static Activations NewWide(const BatchRows& batch, size_t width) {
    Activations a = New(batch, width);
    if (batch.precision == Precision::kQ8)
      a.q8.low = NewQ8Rows(batch.scratch, batch.rows, Q8Groups(width));
    return a;
  }
  // The bytes of `rows` rows of floats that lie elsewhere, `ld` apart.
  static Activations Of(const BatchRows& batch, float* values, size_t width, size_t ld,
                        size_t rows) {
    Activations a{values, width, ld, {}};
    if (batch.precision == Precision::kQ8)
      a.q8.high = NewQ8Rows(batch.scratch, rows, Q8Groups(width));
    return a;
  }

  float* row(size_t i) const { return values + i * ld; }
  // Rows [begin, end) are written.
  void Seal(size_t begin, size_t end) const {
    if (q8.high.values != nullptr) QuantizeRows(values, ld, width, begin, end, q8);
  }
  // The product of the first `n` rows with w, in as many bytes as there are.
  MatMulJob Times(const PackedMatrix& w, float* y, size_t ldy, size_t n) const {
    return {w, values, ld, y, ldy, n, q8};
  }
  // The same with the high bytes only.
  MatMulJob TimesNarrow(const PackedMatrix& w, float* y, size_t ldy, size_t n) const {
    return {w, values, ld, y, ldy, n, {q8.high, {}}};
  }
  Activations From(size_t row) const {
    Activations rest = *this;
    rest.values += row * ld;
    if (q8.high.values != nullptr) rest.q8 = q8.From(row);
    return rest;
  }

  float* values = nullptr;
  size_t width = 0;
  size_t ld = 0;
  Q8Activations q8;
};

// Calls body(begin, end) for ranges that cover [0, rows): on the calling thread when there are few,
// else on the pool. `body` treats every row alike and returns nothing.
template <typename Body>
Status ForRows(const BatchRows& batch, size_t rows, const Body& body) {
  ThreadPool& pool = batch.pool;
  if (pool.size() == 1 || rows <= 1) {
    body(size_t{0}, rows);
    return {};
  }
  const size_t tasks =
      rows <= 16 ? std::min(rows, pool.size()) : std::min(rows / 8, 4 * pool.size());
  return pool.ParallelFor(tasks, rows * batch.row_nanoseconds, [&](size_t task, size_t) {
    body(rows * task / tasks, rows * (task + 1) / tasks);
  });
}

}  // namespace mk
