// Pooling of several rows into one, with weights of its own for every channel:
//
//   y_i = sum_t softmax_t(s_t[i]) v_t[i]
//
// as m = max_t s_t[i]; e_t = e^{s_t - m}; y = (sum_t e_t v_t) / (sum_t e_t), both sums over
// ascending t from zero, the first in fused multiply-adds. Same bits on every processor.

#pragma once

#include <cstddef>
#include <span>

namespace mk {

// One row that takes part: its values and its scores, [y.size()] each, finite.
struct PooledRow {
  const float* values = nullptr;
  const float* scores = nullptr;
};

// At least one row.
void PoolChannels(std::span<const PooledRow> rows, std::span<float> y);

}  // namespace mk
