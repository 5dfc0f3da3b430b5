#include <algorithm>

#include "engine/kernels/matmul_kernel.h"
#include "engine/kernels/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/q8_matmul_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/byte_dot-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Register tiles: N rows of x by PanelsFor(N) panels of 16 outputs, each with a total and the
// integer sum of the group in progress.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kMaxTileRows = 12;
template <bool kVnni>
constexpr size_t PanelsFor(size_t n) {
  return n == 1 ? (kVnni ? 8 : 4) : n == 2 ? 4 : n <= 5 ? 2 : 1;
}
#elif HWY_TARGET == HWY_SCALAR
constexpr size_t kMaxTileRows = 1;
template <bool>
constexpr size_t PanelsFor(size_t) {
  return 1;
}
#else
constexpr size_t kMaxTileRows = 2;
template <bool>
constexpr size_t PanelsFor(size_t n) {
  return n == 1 ? 2 : 1;
}
#endif

constexpr size_t kScaleBytes = kPanelRows * sizeof(float);
constexpr size_t kQuadBytes = kPanelRows * 4;  // four columns of a panel

// Groups ahead of which a tile asks for the weights of a panel: 9 KiB over all panels.
template <size_t P>
constexpr size_t kPrefetchGroups = std::max<size_t>(1, 16 / P);

// One group of 32 columns. w: the group in the first panel. kCold: nobody has read the panels yet;
// `ahead` is the group to ask for, in the first panel of this tile or of the next one.
template <bool kVnni, bool kCold, size_t P, size_t N>
HWY_INLINE void Group(const std::byte* HWY_RESTRICT w, const std::byte* ahead, size_t panel_stride,
                      const Q8Rows& x, size_t group, V16 (&total)[P][N]) {
  const RowsOf<N, int8_t> bytes(x.values + group * kQ8Group, x.stride * kQ8Group);
  const RowsOf<N, float> x_scales(x.scales + group, x.stride);
  const RowsOf<N, int32_t> offsets(x.offsets + group, x.stride);
  I16 acc[P][N];
  for (size_t n = 0; n < N; ++n) {
    // Biased weights are 128 too large: the offset takes 128 times the sum of x back.
    const I16 start = SetInts16(kVnni ? *offsets[n] : 0);
    for (size_t p = 0; p < P; ++p) acc[p][n] = start;
  }
  HWY_UNROLL(8)
  for (size_t k = 0; k < kQ8Group / 4; ++k) {
    Bytes64 weights[P];
    for (size_t p = 0; p < P; ++p) {
      const std::byte* quad = w + p * panel_stride + kScaleBytes + k * kQuadBytes;
      if constexpr (kCold) {
        const std::byte* later = ahead + p * panel_stride + k * kQuadBytes;
        if (k == 0) __builtin_prefetch(later, 0, 2);
        __builtin_prefetch(later + kScaleBytes, 0, 2);
      }
      weights[p] = LoadBytes64(quad);
      if constexpr (!kVnni) weights[p] = FromBiased(weights[p]);
    }
    HWY_UNROLL(12)
    for (size_t n = 0; n < N; ++n) AddFour<kVnni>(weights, bytes[n] + 4 * k, n, acc);
  }
  for (size_t p = 0; p < P; ++p) {
    const V16 scale = LoadAligned16(reinterpret_cast<const float*>(w + p * panel_stride));
    for (size_t n = 0; n < N; ++n) {
      const V16 both = Mul16(scale, Set16(*x_scales[n]));
      total[p][n] = Fma16(ToFloats16(acc[p][n]), both, total[p][n]);
    }
  }
}

template <bool kVnni, bool kCold, size_t P, size_t N>
void Tile(const MatMulJob& job, size_t panel, size_t row) {
  const size_t panel_stride = PanelBytes(WeightKind::kQ8, job.w.cols);
  const std::byte* w = job.w.panels + panel * panel_stride;
  const Q8Activations x = job.q8.From(row);
  const bool wide = x.low.values != nullptr;
  V16 total[P][N];
  for (size_t p = 0; p < P; ++p) {
    for (size_t n = 0; n < N; ++n) total[p][n] = Zero16();
  }
  for (size_t g = 0; g < x.high.groups; ++g) {
    const std::byte* group = w + g * kQ8GroupBytes;
    const size_t later = g + kPrefetchGroups<P>;
    const std::byte* ahead = later < x.high.groups
                                 ? w + later * kQ8GroupBytes
                                 : w + P * panel_stride + (later - x.high.groups) * kQ8GroupBytes;
    Group<kVnni, kCold, P, N>(group, ahead, panel_stride, x.high, g, total);
    if (wide) Group<kVnni, false, P, N>(group, ahead, panel_stride, x.low, g, total);
  }
  for (size_t p = 0; p < P; ++p) {
    const size_t first = (panel + p) * kPanelRows;
    const size_t width = std::min(kPanelRows, job.w.rows - first);
    for (size_t n = 0; n < N; ++n) {
      StoreGroup16(total[p][n], job.y + (row + n) * job.ldy + first, width);
    }
  }
}

template <bool kVnni, bool kCold, size_t P, size_t N>
void PanelLoop(const MatMulJob& job, size_t panel, size_t panel_end, size_t row) {
  for (; panel + P <= panel_end; panel += P) Tile<kVnni, kCold, P, N>(job, panel, row);
  if constexpr (P > 1) PanelLoop<kVnni, kCold, P / 2, N>(job, panel, panel_end, row);
}

template <bool kVnni, bool kCold, size_t N>
void TileRowsUpTo(const MatMulJob& job, size_t panel, size_t panel_end, size_t row, size_t rows) {
  if (rows == N) {
    PanelLoop<kVnni, kCold, PanelsFor<kVnni>(N), N>(job, panel, panel_end, row);
  } else if constexpr (N > 1) {
    TileRowsUpTo<kVnni, kCold, N - 1>(job, panel, panel_end, row, rows);
  }
}

template <bool kVnni>
void Rectangle(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
               size_t row_end) {
  // The weights of a few panels stay in the first levels of the cache while the rows pass by.
  constexpr size_t kPanelStep = 8;
  const size_t rows = row_end - row_begin;
  const size_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (size_t panel = panel_begin; panel < panel_end; panel += kPanelStep) {
    const size_t end = std::min(panel_end, panel + kPanelStep);
    for (size_t tile = 0; tile < tiles; ++tile) {  // of about equal height
      const size_t begin = row_begin + rows * tile / tiles;
      const size_t next = row_begin + rows * (tile + 1) / tiles;
      if (tile == 0) {
        TileRowsUpTo<kVnni, true, kMaxTileRows>(job, panel, end, begin, next - begin);
      } else {
        TileRowsUpTo<kVnni, false, kMaxTileRows>(job, panel, end, begin, next - begin);
      }
    }
  }
}

}  // namespace

void Q8MatMulTileImpl(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                      size_t row_end) {
  if constexpr (kMayHaveVnni) {
    if (HasVnni()) return Rectangle<true>(job, panel_begin, panel_end, row_begin, row_end);
  }
  Rectangle<false>(job, panel_begin, panel_end, row_begin, row_end);
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(Q8MatMulTileImpl);

void Q8MatMulTile(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                  size_t row_end) {
  HWY_DYNAMIC_DISPATCH(Q8MatMulTileImpl)(job, panel_begin, panel_end, row_begin, row_end);
}

}  // namespace mk
#endif  // HWY_ONCE
