// Attention of a batch over the caches of its sequences.

#pragma once

#include <cstddef>

#include "engine/base/result.h"
#include "engine/k3/batch.h"
#include "engine/k3/shape.h"

namespace mk::k3 {

// Queries of all rows and heads and where their results go.
struct AttendArgs {
  const float* queries = nullptr;  // [rows][M][query_width]
  Q8Activations query_bytes = {};  // the same, for sequences that keep bytes
  float* out = nullptr;            // [rows][M][value_width]
  bool expanded = false;           // which sequences take part: those with expanded rows or others
};

// Causal attention for every row of the sequences that take part; their cache holds the rows of
// this batch already. `index` counts MLA layers.
Status AttendCache(const K3Shape& shape, size_t index, const Batch& batch, const AttendArgs& args);

}  // namespace mk::k3
