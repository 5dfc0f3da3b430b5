#include "engine/arch/logits.h"

#include <algorithm>
#include <cmath>

#include "engine/arch/forward_checks.h"
#include "engine/kernels/matmul.h"
#include "engine/kernels/vector_ops.h"

namespace mk {
namespace {

// Rows of logits made at a time when they cannot go straight to the caller; bounds the scratch.
constexpr size_t kLogitRows = 64;
// The same for rows that are looked at and dropped: the head is read once for so many.
constexpr size_t kSentRows = 32;

Status CheckFinite(std::span<const float> row) {
  if (std::isfinite(Sum(row))) return {};
  return Fail(ErrorCode::kNumeric, "non-finite logits",
              "the head of the model is damaged; check the file");
}

// So many rows, `step` at a time, each time into `buffer` [step][vocab].
struct Projection {
  size_t rows;
  size_t step;
  float* buffer;
};

// Rows of x times the head; each is checked, and handed over with its index.
template <typename Take>
Status Project(const BatchRows& batch, const PackedMatrix& head, const Activations& x,
               const Projection& projection, const Take& take) {
  const size_t vocab = head.rows;
  for (size_t first = 0; first < projection.rows; first += projection.step) {
    const size_t n = std::min(projection.step, projection.rows - first);
    const MatMulJob job = x.From(first).Times(head, projection.buffer, vocab, n);
    if (Status done = ParallelMatMul(batch.pool, {&job, 1}); !done) return done;
    for (size_t r = 0; r < n; ++r) {
      const std::span<const float> row(projection.buffer + r * vocab, vocab);
      if (Status finite = CheckFinite(row); !finite) return finite;
      take(first + r, row);
    }
  }
  return {};
}

}  // namespace

WantedRows::WantedRows(ScratchArena& scratch, size_t batch_rows, std::span<ForwardItem> items,
                       size_t vocab)
    : rows(scratch.Allocate<size_t>(batch_rows)), targets(scratch.Allocate<float*>(batch_rows)) {
  size_t count = 0;
  size_t end = 0;
  for (const ForwardItem& item : items) {
    end += item.tokens.size();
    const size_t wanted = LogitRows(item);
    for (size_t r = 0; r < wanted; ++r) {
      rows[count] = end - wanted + r;
      targets[count] = item.logits.data() + r * vocab;
      if (count > 0 && targets[count] != targets[count - 1] + vocab) one_span = false;
      ++count;
    }
  }
  rows = rows.first(count);
  targets = targets.first(count);
}

Status WriteLogits(const BatchRows& batch, const PackedMatrix& head, const Activations& x,
                   const WantedRows& wanted) {
  const size_t count = wanted.rows.size();
  if (count == 0) return {};
  const size_t vocab = head.rows;
  if (wanted.one_span) {
    return Project(batch, head, x, {count, count, wanted.targets[0]}, [](size_t, auto) {});
  }
  const size_t step = std::min(count, kLogitRows);
  float* const buffer = batch.scratch.Allocate<float>(step * vocab).data();
  return Project(batch, head, x, {count, step, buffer}, [&](size_t row, auto logits) {
    std::copy(logits.begin(), logits.end(), wanted.targets[row]);
  });
}

Status SendLogits(const BatchRows& batch, const PackedMatrix& head, const Activations& x,
                  size_t rows, const LensSink& sink) {
  const size_t step = std::min(rows, kSentRows);
  float* const buffer = batch.scratch.Allocate<float>(step * head.rows).data();
  return Project(batch, head, x, {rows, step, buffer}, sink);
}

}  // namespace mk
