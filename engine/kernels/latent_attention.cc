#include "engine/kernels/latent_attention.h"

#include <cmath>
#include <span>

#include "engine/kernels/activations.h"
#include "engine/kernels/vector_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/latent_attention.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t kLanes = 16;  // of a dot product, on every processor

// Lane j plus lane j + half, down to one.
template <class D>
HWY_INLINE float TreeSum(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return TreeSum(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return hn::GetLane(v);
  }
}

// Dot products of the query with kRows rows of keys.
template <size_t kRows>
HWY_INLINE void Scores(const AttentionTile& tile, size_t first, const float* HWY_RESTRICT query,
                       float scale, float* HWY_RESTRICT scores) {
  const hn::CappedTag<float, kLanes> d;
  constexpr size_t kParts = kLanes / hn::MaxLanes(d);
  constexpr size_t kWidth = hn::MaxLanes(d);
  hn::Vec<decltype(d)> sum[kRows][kParts];
  for (auto& row : sum) {
    for (auto& part : row) part = hn::Zero(d);
  }
  const float* HWY_RESTRICT keys = tile.keys + first * tile.key_stride;
  size_t c = 0;
  for (; c + kLanes <= tile.key_width; c += kLanes) {
    for (size_t p = 0; p < kParts; ++p) {
      const auto q = hn::LoadU(d, query + c + p * kWidth);
      for (size_t r = 0; r < kRows; ++r) {
        const auto k = hn::LoadU(d, keys + r * tile.key_stride + c + p * kWidth);
        sum[r][p] = hn::MulAdd(q, k, sum[r][p]);
      }
    }
  }
  if (c < tile.key_width) {
    // The tail as if the row went on with zeros.
    alignas(64) float q_tail[kLanes] = {};
    for (size_t l = 0; c + l < tile.key_width; ++l) q_tail[l] = query[c + l];
    for (size_t r = 0; r < kRows; ++r) {
      alignas(64) float k_tail[kLanes] = {};
      const float* key = keys + r * tile.key_stride;
      for (size_t l = 0; c + l < tile.key_width; ++l) k_tail[l] = key[c + l];
      for (size_t p = 0; p < kParts; ++p) {
        sum[r][p] = hn::MulAdd(hn::Load(d, q_tail + p * kWidth), hn::Load(d, k_tail + p * kWidth),
                               sum[r][p]);
      }
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t half = kParts / 2; half > 0; half /= 2) {
      for (size_t p = 0; p < half; ++p) sum[r][p] = hn::Add(sum[r][p], sum[r][p + half]);
    }
    scores[first + r] = TreeSum(d, sum[r][0]) * scale;
  }
}

// acc = acc rescale + sum_t weights[t] values[t] over kBlock vectors of columns.
template <size_t kBlock, class D>
HWY_INLINE void ValueColumns(D d, const AttentionTile& tile, const float* HWY_RESTRICT weights,
                             float rescale, size_t first, float* HWY_RESTRICT acc) {
  const size_t lanes = hn::Lanes(d);
  hn::Vec<D> sum[kBlock];
  for (size_t b = 0; b < kBlock; ++b) {
    sum[b] = hn::Mul(hn::LoadU(d, acc + first + b * lanes), hn::Set(d, rescale));
  }
  for (size_t t = 0; t < tile.count; ++t) {
    const float* row = tile.values + t * tile.value_stride + first;
    const auto weight = hn::Set(d, weights[t]);
    for (size_t b = 0; b < kBlock; ++b) {
      sum[b] = hn::MulAdd(weight, hn::LoadU(d, row + b * lanes), sum[b]);
    }
  }
  for (size_t b = 0; b < kBlock; ++b) hn::StoreU(sum[b], d, acc + first + b * lanes);
}

void TileScores(const AttentionTile& tile, const float* query, float scale, float* scores) {
  size_t t = 0;
  for (; t + 4 <= tile.count; t += 4) Scores<4>(tile, t, query, scale, scores);
  for (; t < tile.count; ++t) Scores<1>(tile, t, query, scale, scores);
}

void AddValues(const AttentionTile& tile, const float* weights, float rescale, float* acc) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const size_t lanes = hn::Lanes(d);
  size_t j = 0;
  for (; j + 4 * lanes <= tile.value_width; j += 4 * lanes) {
    ValueColumns<4>(d, tile, weights, rescale, j, acc);
  }
  for (; j + lanes <= tile.value_width; j += lanes) {
    ValueColumns<1>(d, tile, weights, rescale, j, acc);
  }
  for (; j < tile.value_width; ++j) ValueColumns<1>(one, tile, weights, rescale, j, acc);
}

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
