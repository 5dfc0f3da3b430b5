#include "engine/kernels/latent_attention.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "engine/kernels/activations.h"
#include "engine/kernels/matmul_kernel.h"
#include "engine/kernels/vector_ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/latent_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/math-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Queries that share the loads of a row, and positions and columns of a register tile.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kQueries = 4;
constexpr size_t kPositions = 4;
constexpr size_t kColumnGroups = 4;
#elif HWY_TARGET == HWY_SCALAR
constexpr size_t kQueries = 1;
constexpr size_t kPositions = 1;
constexpr size_t kColumnGroups = 1;
#else
constexpr size_t kQueries = 2;
constexpr size_t kPositions = 2;
constexpr size_t kColumnGroups = 2;
#endif

// Scores, then weights, of up to kQueries queries.
using Scores = float[kQueries][kAttentionTile];

// Adds the products of 16 columns from `c` on, or the first `width` of them.
template <bool kFull, size_t Q, size_t R>
HWY_INLINE void ScoreColumns(const float* HWY_RESTRICT keys, size_t key_stride, size_t c,
                             size_t width, const AttentionQuery* queries, V16 (&sum)[Q][R]) {
  V16 key[R];
  for (size_t r = 0; r < R; ++r) {
    const float* p = keys + r * key_stride + c;
    key[r] = kFull ? Load16(p) : LoadPartial16(p, width);
  }
  for (size_t q = 0; q < Q; ++q) {
    const float* p = queries[q].query + c;
    const V16 value = kFull ? Load16(p) : LoadPartial16(p, width);
    for (size_t r = 0; r < R; ++r) sum[q][r] = Fma16(value, key[r], sum[q][r]);
  }
}

// Products of Q queries with R positions from `first` on.
template <size_t Q, size_t R>
HWY_INLINE void ScoreBlock(const AttentionTile& tile, size_t first, const AttentionQuery* queries,
                           float scale, Scores& scores) {
  const float* keys = tile.keys + first * tile.key_stride;
  if (tile.next_keys != nullptr) {
    for (size_t r = 0; r < R; ++r) {
      const float* next = tile.next_keys + (first + r) * tile.key_stride;
      for (size_t c = 0; c < tile.key_width; c += 16) __builtin_prefetch(next + c, 0, 2);
    }
  }
  V16 sum[Q][R];
  for (size_t q = 0; q < Q; ++q) {
    for (size_t r = 0; r < R; ++r) sum[q][r] = Zero16();
  }
  size_t c = 0;
  for (; c + 16 <= tile.key_width; c += 16) {
    ScoreColumns<true>(keys, tile.key_stride, c, 16, queries, sum);
  }
  if (c < tile.key_width) {
    ScoreColumns<false>(keys, tile.key_stride, c, tile.key_width - c, queries, sum);
  }
  for (size_t q = 0; q < Q; ++q) {
    float* out = scores[q] + first;
    if constexpr (R == 4) {
      ReduceSum16x4(sum[q][0], sum[q][1], sum[q][2], sum[q][3], out);
      for (size_t r = 0; r < R; ++r) out[r] *= scale;
    } else {
      for (size_t r = 0; r < R; ++r) out[r] = ReduceSum16(sum[q][r]) * scale;
    }
  }
}

// Scores to weights e^{s - max}. Returns what the accumulators are to be multiplied with.
HWY_INLINE float RunSoftmax(float* scores, size_t count, AttentionQuery& query) {
  const float max = std::fmax(query.max, LargestOf(scores, count));
  if (max == -HUGE_VALF) {
    // e^(-inf - -inf) would be NaN; scores that are NaN stay.
    for (size_t i = 0; i < count; ++i) scores[i] = scores[i] == scores[i] ? 0.0f : scores[i];
  }
  const V16 top = Set16(max == -HUGE_VALF ? 0.0f : max);
  V16 sum = Zero16();
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    if (max != -HUGE_VALF) {
      StoreGroup16(Exp16(Sub16(LoadGroup16(scores + i, width), top)), scores + i, width);
    }
    // Lanes past the end must add nothing, and e^(0 - max) is not nothing.
    sum = Add16(sum, LoadGroup16(scores + i, width));
  });
  // e^{-inf} of the first tile is 0 and clears the (zero) sums.
  alignas(64) float rescale[16];
  Store16(Exp16(Set16(query.max - max)), rescale);
  query.sum = query.sum * rescale[0] + ReduceSum16(sum);
  query.max = max;
  return rescale[0];
}

// The accumulators of Q queries times `rescale`: G groups of 16 columns from `first` on, or the
// first `width` columns of one.
template <bool kFull, size_t Q, size_t G>
HWY_INLINE void LoadScaled(const AttentionQuery* queries, const float* rescale, size_t first,
                           size_t width, V16 (&sum)[Q][G]) {
  for (size_t q = 0; q < Q; ++q) {
    const float* acc = queries[q].acc + first;
    for (size_t g = 0; g < G; ++g) {
      const V16 old = kFull ? Load16(acc + 16 * g) : LoadPartial16(acc, width);
      sum[q][g] = Mul16(old, Set16(rescale[q]));
    }
  }
}

// Puts them back.
template <bool kFull, size_t Q, size_t G>
HWY_INLINE void StoreSums(const AttentionQuery* queries, size_t first, size_t width,
                          const V16 (&sum)[Q][G]) {
  for (size_t q = 0; q < Q; ++q) {
    float* acc = queries[q].acc + first;
    for (size_t g = 0; g < G; ++g) {
      if (kFull) {
        Store16(sum[q][g], acc + 16 * g);
      } else {
        StorePartial16(sum[q][g], acc, width);
      }
    }
  }
}

// acc = acc rescale + sum_t weights[t] values[t] for Q queries that see `count` positions, over G
// groups of 16 columns from `first` on, or over the first `width` columns of one.
template <bool kFull, size_t Q, size_t G>
HWY_INLINE void ValueBlock(const AttentionTile& tile, size_t count, const AttentionQuery* queries,
                           const Scores& weights, const float* rescale, size_t first,
                           size_t width) {
  V16 sum[Q][G];
  LoadScaled<kFull>(queries, rescale, first, width, sum);
  for (size_t t = 0; t < count; ++t) {
    const float* row = tile.values + t * tile.value_stride + first;
    V16 value[G];
    for (size_t g = 0; g < G; ++g) {
      value[g] = kFull ? Load16(row + 16 * g) : LoadPartial16(row, width);
    }
    for (size_t q = 0; q < Q; ++q) {
      const V16 weight = Set16(weights[q][t]);
      for (size_t g = 0; g < G; ++g) sum[q][g] = Fma16(weight, value[g], sum[q][g]);
    }
  }
  StoreSums<kFull>(queries, first, width, sum);
}

// Q queries that see the same number of positions.
template <size_t Q>
void AttendQueries(const AttentionTile& tile, float scale, AttentionQuery* queries) {
  const size_t count = queries[0].count;
  alignas(64) Scores scores;
  size_t t = 0;
  for (; t + kPositions <= count; t += kPositions) {
    ScoreBlock<Q, kPositions>(tile, t, queries, scale, scores);
  }
  for (; t < count; ++t) ScoreBlock<Q, 1>(tile, t, queries, scale, scores);
  float rescale[Q];
  for (size_t q = 0; q < Q; ++q) rescale[q] = RunSoftmax(scores[q], count, queries[q]);
  size_t c = 0;
  for (; c + 16 * kColumnGroups <= tile.value_width; c += 16 * kColumnGroups) {
    ValueBlock<true, Q, kColumnGroups>(tile, count, queries, scores, rescale, c, 16);
  }
  for (; c + 16 <= tile.value_width; c += 16) {
    ValueBlock<true, Q, 1>(tile, count, queries, scores, rescale, c, 16);
  }
  if (c < tile.value_width) {
    ValueBlock<false, Q, 1>(tile, count, queries, scores, rescale, c, tile.value_width - c);
  }
}

// acc = acc rescale + sum_t weights[g][t] bytes[t] over G groups of 16 columns from `first` on, or
// over the first `width` columns of one; g is the group of 32 columns.
using GroupWeights = float[kAttentionTile];

template <bool kFull, size_t Q, size_t G>
HWY_INLINE void ByteValueBlock(const int8_t* values, size_t stride, size_t count,
                               const AttentionQuery* queries,
                               const GroupWeights* const (&weights)[Q], const float* rescale,
                               size_t first, size_t width) {
  V16 sum[Q][G];
  LoadScaled<kFull>(queries, rescale, first, width, sum);
  for (size_t t = 0; t < count; ++t) {
    V16 value[G];
    for (size_t g = 0; g < G; ++g) value[g] = LoadBytes16(values + t * stride + first + 16 * g);
    for (size_t q = 0; q < Q; ++q) {
      for (size_t g = 0; g < G; ++g) {
        const V16 weight = Set16(weights[q][(first + 16 * g) / kQ8Group][t]);
        sum[q][g] = Fma16(weight, value[g], sum[q][g]);
      }
    }
  }
  StoreSums<kFull>(queries, first, width, sum);
}

// Q queries that see the same number of positions; `scores` are products without the scale.
// `weights`: scratch [Q][latent groups][kAttentionTile].
template <size_t Q>
void AttendByteQueries(const AttentionTile& tile, float scale, AttentionQuery* queries,
                       Scores& scores, GroupWeights* weights) {
  const size_t count = queries[0].count;
  const LatentShape& shape = tile.byte_shape;
  const size_t panel_bytes = PanelBytes(WeightKind::kQ8, shape.groups() * kQ8Group);
  float rescale[Q];
  const GroupWeights* of_query[Q];
  for (size_t q = 0; q < Q; ++q) {
    MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
      StoreGroup16(Mul16(LoadGroup16(scores[q] + i, width), Set16(scale)), scores[q] + i, width);
    });
    rescale[q] = RunSoftmax(scores[q], count, queries[q]);
    of_query[q] = weights + q * shape.latent_groups();
    for (size_t g = 0; g < shape.latent_groups(); ++g) {
      float* out = weights[q * shape.latent_groups() + g];
      MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
        const std::byte* group = tile.bytes + i / kPanelRows * panel_bytes + g * kQ8GroupBytes;
        const V16 scales = LoadAligned16(reinterpret_cast<const float*>(group));
        StoreGroup16(Mul16(LoadGroup16(scores[q] + i, width), scales), out + i, width);
      });
    }
  }
  const auto* values = reinterpret_cast<const int8_t*>(tile.bytes + shape.key_bytes());
  const size_t stride = shape.value_stride();
  size_t c = 0;
  for (; c + 16 * kColumnGroups <= tile.value_width; c += 16 * kColumnGroups) {
    ByteValueBlock<true, Q, kColumnGroups>(values, stride, count, queries, of_query, rescale, c,
                                           16);
  }
  for (; c + 16 <= tile.value_width; c += 16) {
    ByteValueBlock<true, Q, 1>(values, stride, count, queries, of_query, rescale, c, 16);
  }
  if (c < tile.value_width) {
    ByteValueBlock<false, Q, 1>(values, stride, count, queries, of_query, rescale, c,
                                tile.value_width - c);
  }
}

}  // namespace

// `n` is 1 or kQueries. scores: [n][kAttentionTile].
void AttendBytesImpl(const AttentionTile& tile, float scale, AttentionQuery* queries, size_t n,
                     float* scores, float* weights) {
  auto& by_query = *reinterpret_cast<Scores*>(scores);
  auto* by_group = reinterpret_cast<GroupWeights*>(weights);
  if (n == 1) {
    AttendByteQueries<1>(tile, scale, queries, by_query, by_group);
  } else {
    AttendByteQueries<kQueries>(tile, scale, queries, by_query, by_group);
  }
}

size_t QueriesTogetherImpl() {
  return kQueries;
}

void AttendTileImpl(AttentionTile tile, float scale, std::span<AttentionQuery> queries) {
  size_t i = 0;
  while (i < queries.size()) {
    const auto same = [&](size_t n) {
      if (i + n > queries.size()) return false;
      for (size_t q = 1; q < n; ++q) {
        if (queries[i + q].count != queries[i].count) return false;
      }
      return true;
    };
    if (kQueries > 1 && same(kQueries)) {
      AttendQueries<kQueries>(tile, scale, &queries[i]);
      i += kQueries;
    } else {
      AttendQueries<1>(tile, scale, &queries[i]);
      ++i;
    }
    tile.next_keys = nullptr;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(AttendTileImpl);
HWY_EXPORT(AttendBytesImpl);
HWY_EXPORT(QueriesTogetherImpl);

namespace {

constexpr size_t kMostTogether = 4;

// Queries i .. i + n - 1 can share a product: rows that follow each other and see as much.
bool Together(std::span<const AttentionQuery> queries, size_t i, size_t n) {
  if (i + n > queries.size()) return false;
  for (size_t q = 1; q < n; ++q) {
    if (queries[i + q].count != queries[i].count) return false;
    if (queries[i + q].row != queries[i].row + q) return false;
  }
  return true;
}

void AttendBytes(const AttentionTile& tile, float scale, std::span<AttentionQuery> queries,
                 std::span<float> weights) {
  const LatentShape& shape = tile.byte_shape;
  if (tile.next_bytes != nullptr) {
    for (size_t i = 0; i < shape.tile_bytes(); i += 64) {
      __builtin_prefetch(tile.next_bytes + i, 0, 2);
    }
  }
  const size_t most = HWY_DYNAMIC_DISPATCH(QueriesTogetherImpl)();
  alignas(64) float scores[kMostTogether * kAttentionTile];
  for (size_t i = 0; i < queries.size();) {
    const size_t n = Together(queries, i, most) ? most : 1;
    const size_t count = queries[i].count;
    const PackedMatrix keys{WeightKind::kQ8, tile.bytes, count, shape.groups() * kQ8Group};
    const MatMulJob job{
        keys, nullptr, 0, scores, kAttentionTile, n, tile.query_bytes.From(queries[i].row)};
    Q8MatMulTile(job, 0, (count + kPanelRows - 1) / kPanelRows, 0, n);
    HWY_DYNAMIC_DISPATCH(AttendBytesImpl)
    (tile, scale, &queries[i], n, scores, weights.data());
    i += n;
  }
}

}  // namespace

size_t AttentionScratch(const LatentShape& shape) {
  return kMostTogether * shape.latent_groups() * kAttentionTile;
}

void AttendTile(const AttentionTile& tile, float scale, std::span<AttentionQuery> queries,
                std::span<float> scratch) {
  if (tile.bytes != nullptr) return AttendBytes(tile, scale, queries, scratch);
  HWY_DYNAMIC_DISPATCH(AttendTileImpl)(tile, scale, queries);
}

void MergeAttention(const AttentionQuery& part, size_t value_width, AttentionQuery& into) {
  const float max = std::fmax(into.max, part.max);
  float factors[2] = {into.max - max, part.max - max};
  Exp(factors, factors);
  const std::span<float> acc(into.acc, value_width);
  Scale(factors[0], acc, acc);
  Axpy(factors[1], {part.acc, value_width}, acc);
  into.sum = into.sum * factors[0] + part.sum * factors[1];
  into.max = max;
}

void FinishAttention(const AttentionQuery& query, size_t value_width) {
  const std::span<float> acc(query.acc, value_width);
  Scale(1.0f / query.sum, acc, acc);
}

}  // namespace mk
#endif  // HWY_ONCE
