// Attention of queries over rows of keys and values, tile by tile, with a running softmax.
//
// The rows may be latents shared by all heads (key = the whole row, value = its first part) or the
// expanded keys and values of one head. For a query q and positions in tiles of kAttentionTile:
//
//   s_t = (q . k_t) scale;  m' = max(m, max s_t);  f = e^{m - m'}  (0 for the first tile)
//   p_t = e^{s_t - m'};  sum <- sum f + sum_t p_t;  acc <- acc f + sum_t p_t v_t
//   out = acc / sum
//
// Long caches are cut into segments of kAttentionSegment positions at its absolute multiples. Every
// segment has a running softmax of its own; they are merged in ascending order:
//
//   m' = max(m, m_s);  acc <- acc e^{m - m'} + acc_s e^{m_s - m'};  sum likewise
//
// Caches of bytes (latent_bytes.h): with bytes k and scales d of a position by groups g of 32
// columns, and the query as two bytes (q8_rows.h), q . k_t is the product of matmul.h
// for kQ8, and acc adds fma(p_t d_g, k_c, acc_c) over ascending positions, p_t d_g rounded.
//
// The dot product of floats sums in 16 lanes reduced as a tree (vector_ops.h); the sum over values
// is a chain of fused multiply-adds over ascending positions. So the bits of a query depend on its
// tiles only: not on which other queries are computed, which workers take which segments, nor on
// the width of the vectors.

#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "engine/kernels/latent_bytes.h"
#include "engine/kernels/q8_rows.h"

namespace mk {

inline constexpr size_t kAttentionTile = 64;
inline constexpr size_t kAttentionSegment = 512;

// Consecutive positions, at most kAttentionTile; row t starts at t * its stride (floats).
struct AttentionTile {
  const float* keys = nullptr;
  size_t key_stride = 0;
  size_t key_width = 0;
  const float* values = nullptr;
  size_t value_stride = 0;
  size_t value_width = 0;
  // Rows that will be read next, at the same stride, or null. A row is too short for the processor
  // to notice a stream, so they are asked for on the way.
  const float* next_keys = nullptr;

  // A tile of bytes instead: keys and values above are not looked at, but for value_width. Queries
  // are rows of query_bytes.
  const std::byte* bytes = nullptr;
  LatentShape byte_shape = {};
  Q8Activations query_bytes = {};
  const std::byte* next_bytes = nullptr;
};

// One query and its running softmax.
struct AttentionQuery {
  const float* query = nullptr;  // [key_width]
  size_t row = 0;                // of query_bytes
  float* acc = nullptr;          // [value_width], zero before the first tile
  size_t count = 0;              // positions of the tile that the query sees, at least 1
  float max = -std::numeric_limits<float>::infinity();
  float sum = 0;
};

// Takes in one tile for all queries; the rows are read once for several of them. Non-finite scores
// make acc or sum non-finite.
// Tiles of bytes need scratch.
void AttendTile(const AttentionTile& tile, float scale, std::span<AttentionQuery> queries,
                std::span<float> scratch = {});

// Floats of scratch for tiles of bytes.
size_t AttentionScratch(const LatentShape& shape);

// Adds a later segment of the same query: `into` takes in `part`.
void MergeAttention(const AttentionQuery& part, size_t value_width, AttentionQuery& into);

// acc <- acc / sum.
void FinishAttention(const AttentionQuery& query, size_t value_width);

}  // namespace mk
