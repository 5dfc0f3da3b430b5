// The head: logits of the rows that the items of a batch want.

#pragma once

#include <cstddef>
#include <span>

#include "engine/arch/batch.h"
#include "engine/base/result.h"
#include "engine/kernels/packed_matrix.h"
#include "engine/model/model.h"

namespace mk {

// The rows of a batch whose logits are wanted, and where these belong. Items follow each other in
// the batch.
struct WantedRows {
  WantedRows(ScratchArena& scratch, size_t rows, std::span<ForwardItem> items, size_t vocab);
  std::span<size_t> rows;     // ascending
  std::span<float*> targets;  // [rows] of vocab floats
  bool one_span = true;       // the targets follow each other in memory
};

// Products of the head [V, d] with `x`, whose row i is made from wanted.rows[i]. kNumeric when a
// logit is not finite.
Status WriteLogits(const BatchRows& batch, const PackedMatrix& head, const Activations& x,
                   const WantedRows& wanted);

// The same for the first `rows` rows of x, of which few are held at a time: to `sink`, in order.
Status SendLogits(const BatchRows& batch, const PackedMatrix& head, const Activations& x,
                  size_t rows, const LensSink& sink);

}  // namespace mk
