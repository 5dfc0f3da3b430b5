// Attention of one query over rows of keys and values, tile by tile, with a running softmax.
//
// The rows may be latents shared by all heads (key = the whole row, value = its first part) or the
// expanded keys and values of one head. For a query q and positions in tiles of kAttentionTile:
//
//   s_t = (q . k_t) scale;  m' = max(m, max s_t);  f = e^{m - m'}  (0 for the first tile)
//   p_t = e^{s_t - m'};  sum <- sum f + sum_t p_t;  acc <- acc f + sum_t p_t v_t
//   out = acc / sum
//
// The dot product sums in 16 lanes reduced as a tree (vector_ops.h); the sum over values is a chain
// of fused multiply-adds over ascending positions. So the bits of a query depend on its tiles only:
// not on which other queries are computed, nor on the width of the vectors.

#pragma once

#include <cstddef>
#include <limits>

namespace mk {

inline constexpr size_t kAttentionTile = 64;

// `count` consecutive positions, at most kAttentionTile; row t starts at t * its stride (floats).
struct AttentionTile {
  const float* keys = nullptr;
  size_t key_stride = 0;
  size_t key_width = 0;
  const float* values = nullptr;
  size_t value_stride = 0;
  size_t value_width = 0;
  size_t count = 0;
};

// Running softmax of one query.
struct AttentionState {
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Takes in one tile: query [key_width], acc [value_width], zero before the first tile. Non-finite
// scores make acc or sum non-finite.
void AttendTile(const AttentionTile& tile, const float* query, float scale, AttentionState& state,
                float* acc);

// acc <- acc / sum.
void FinishAttention(const AttentionState& state, float* acc, size_t value_width);

}  // namespace mk
