#include "engine/kernels/latent_attention.h"

#include <cmath>
#include <span>

#include "engine/kernels/activations.h"
#include "engine/kernels/vector_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/latent_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Scores of kRows positions from `first` on.
template <size_t kRows>
HWY_INLINE void Scores(const AttentionTile& tile, size_t first, const float* HWY_RESTRICT query,
                       float scale, float* HWY_RESTRICT scores) {
  const float* HWY_RESTRICT keys = tile.keys + first * tile.key_stride;
  V16 sum[kRows];
  for (V16& row : sum) row = Zero16();
  size_t c = 0;
  for (; c + 16 <= tile.key_width; c += 16) {
    const V16 q = Load16(query + c);
    for (size_t r = 0; r < kRows; ++r) {
      sum[r] = Fma16(q, Load16(keys + r * tile.key_stride + c), sum[r]);
    }
  }
  if (c < tile.key_width) {
    const size_t width = tile.key_width - c;
    const V16 q = LoadPartial16(query + c, width);
    for (size_t r = 0; r < kRows; ++r) {
      sum[r] = Fma16(q, LoadPartial16(keys + r * tile.key_stride + c, width), sum[r]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) scores[first + r] = ReduceSum16(sum[r]) * scale;
}

// acc = acc rescale + sum_t weights[t] values[t] over kBlock groups of 16 columns.
template <size_t kBlock>
HWY_INLINE void ValueColumns(const AttentionTile& tile, const float* HWY_RESTRICT weights,
                             float rescale, size_t first, float* HWY_RESTRICT acc) {
  V16 sum[kBlock];
  for (size_t b = 0; b < kBlock; ++b) sum[b] = Mul16(Load16(acc + first + 16 * b), Set16(rescale));
  for (size_t t = 0; t < tile.count; ++t) {
    const float* row = tile.values + t * tile.value_stride + first;
    const V16 weight = Set16(weights[t]);
    for (size_t b = 0; b < kBlock; ++b) sum[b] = Fma16(weight, Load16(row + 16 * b), sum[b]);
  }
  for (size_t b = 0; b < kBlock; ++b) Store16(sum[b], acc + first + 16 * b);
}

// The same for the last `width` < 16 columns.
HWY_INLINE void ValueTail(const AttentionTile& tile, const float* weights, float rescale,
                          size_t first, size_t width, float* acc) {
  V16 sum = Mul16(LoadPartial16(acc + first, width), Set16(rescale));
  for (size_t t = 0; t < tile.count; ++t) {
    const V16 value = LoadPartial16(tile.values + t * tile.value_stride + first, width);
    sum = Fma16(Set16(weights[t]), value, sum);
  }
  StorePartial16(sum, acc + first, width);
}

void TileScores(const AttentionTile& tile, const float* query, float scale, float* scores) {
  size_t t = 0;
  for (; t + 4 <= tile.count; t += 4) Scores<4>(tile, t, query, scale, scores);
  for (; t < tile.count; ++t) Scores<1>(tile, t, query, scale, scores);
}

void AddValues(const AttentionTile& tile, const float* weights, float rescale, float* acc) {
  size_t j = 0;
  for (; j + 64 <= tile.value_width; j += 64) ValueColumns<4>(tile, weights, rescale, j, acc);
  for (; j + 16 <= tile.value_width; j += 16) ValueColumns<1>(tile, weights, rescale, j, acc);
  if (j < tile.value_width) {
    ValueTail(tile, weights, rescale, j, tile.value_width - j, acc);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(TileScores);
HWY_EXPORT(AddValues);

void AttendTile(const AttentionTile& tile, const float* query, float scale, AttentionState& state,
                float* acc) {
  alignas(64) float scores[kAttentionTile];
  HWY_DYNAMIC_DISPATCH(TileScores)(tile, query, scale, scores);
  const std::span<float> seen(scores, tile.count);
  const float max = std::fmax(state.max, Max(seen));
  // e^{-inf} of the first tile is 0 and clears the (zero) sums.
  float rescale = state.max - max;
  Exp({&rescale, 1}, {&rescale, 1});
  state.sum = state.sum * rescale + ExpSum(seen, max);
  state.max = max;
  HWY_DYNAMIC_DISPATCH(AddValues)(tile, scores, rescale, acc);
}

void FinishAttention(const AttentionState& state, float* acc, size_t value_width) {
  Scale(1.0f / state.sum, {acc, value_width}, {acc, value_width});
}

}  // namespace mk
#endif  // HWY_ONCE
