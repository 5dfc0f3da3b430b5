#include "engine/kernels/matmul_kernel.h"

#include <algorithm>
#include <cstdint>

#include "engine/kernels/bf16.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/matmul_kernel.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Register tiles: N rows of x by PanelsFor(N) panels of 16 outputs, each with a total and the chain
// in progress. They fill most of the register file (32 registers of AVX-512 and NEON, 16 of AVX2)
// and are enough independent chains to hide the latency of a multiply-add.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kMaxTileRows = 6;
constexpr size_t PanelsFor(size_t n) {
  return n == 1 ? 8 : n <= 3 ? 4 : 2;
}
#elif HWY_TARGET == HWY_SCALAR
constexpr size_t kMaxTileRows = 1;
constexpr size_t PanelsFor(size_t) {
  return 1;
}
#else
constexpr size_t kMaxTileRows = 3;
constexpr size_t PanelsFor(size_t n) {
  return n == 1 ? 2 : 1;
}
#endif

// Columns that the rows of a tile pass at a time: their part of x and of a few panels stays in the
// first level cache.
constexpr size_t kBlockColumns = 256;
static_assert(kBlockColumns % kChainColumns == 0);

// Floats between rows of a packed tile of x: a block and a cache line, so that the rows of a tile
// do not fall into the same cache sets.
constexpr size_t kTileStride = kBlockColumns + 16;

// How far ahead a tile asks for the weights of a panel, in columns: 8 KiB of floats over all panels
// of a tile, less when several rows of x keep it busy (measured). They are fetched into the second
// level cache; fetching into the first is slower than not asking at all.
constexpr size_t PrefetchColumns(size_t n, size_t panels) {
  return n == 1 ? 128 / panels : n <= 6 ? 32 : 48;
}

HWY_INLINE V16 LoadColumn(const float* p) {
  return LoadAligned16(p);
}

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE V16 LoadColumn(const uint16_t* p) {
  V16 r;
  for (size_t i = 0; i < 16; ++i) r.part[i] = hn::Set(DF(), FromBf16(p[i]));
  return r;
}
#else
HWY_INLINE V16 LoadColumn(const uint16_t* p) {
  V16 r;
  const hn::FixedTag<uint16_t, kRegisterLanes> d16;
  const hn::FixedTag<uint32_t, kRegisterLanes> d32;
  for (size_t i = 0; i < kV16Parts; ++i) {
    const auto half = hn::PromoteTo(d32, hn::Load(d16, p + i * kRegisterLanes));
    r.part[i] = hn::BitCast(DF(), hn::ShiftLeft<16>(half));
  }
  return r;
}
#endif

// Adds one chain to every total: columns [0, cols), cols <= kChainColumns. T: float or bfloat16.
template <size_t P, size_t N, typename T>
HWY_INLINE void Chain(const T* HWY_RESTRICT w, size_t panel_stride, const float* HWY_RESTRICT x,
                      size_t ldx, size_t cols, V16 (&total)[P][N]) {
  V16 acc[P][N];
  for (size_t p = 0; p < P; ++p) {
    for (size_t n = 0; n < N; ++n) acc[p][n] = Zero16();
  }
  for (size_t c = 0; c < cols; ++c) {
    V16 weights[P];
    for (size_t p = 0; p < P; ++p) {
      const T* column = w + p * panel_stride + c * kPanelRows;
      // One request per cache line.
      if (sizeof(T) == 4 || c % 2 == 0) {
        __builtin_prefetch(column + PrefetchColumns(N, P) * (4 / sizeof(T)) * kPanelRows, 0, 2);
      }
      weights[p] = LoadColumn(column);
    }
    for (size_t n = 0; n < N; ++n) {
      const V16 value = Set16(x[n * ldx + c]);
      for (size_t p = 0; p < P; ++p) acc[p][n] = Fma16(weights[p], value, acc[p][n]);
    }
  }
  for (size_t p = 0; p < P; ++p) {
    for (size_t n = 0; n < N; ++n) total[p][n] = Add16(total[p][n], acc[p][n]);
  }
}

// One block of columns: out[p][n] gets (first block) or goes on with the chains over `cols` columns
// of panel p (panel_stride elements apart) and row n of x. `last_width` outputs of the last panel
// exist.
template <size_t P, size_t N, typename T>
void Tile(const T* HWY_RESTRICT w, size_t panel_stride, const float* HWY_RESTRICT x, size_t ldx,
          size_t cols, bool first, float* HWY_RESTRICT y, size_t ldy, size_t last_width) {
  V16 total[P][N];
  const auto width = [last_width](size_t p) { return p + 1 == P ? last_width : kPanelRows; };
  for (size_t p = 0; p < P; ++p) {
    for (size_t n = 0; n < N; ++n) {
      total[p][n] = first ? Zero16() : LoadGroup16(y + n * ldy + p * kPanelRows, width(p));
    }
  }
  size_t c = 0;
  for (; c + kChainColumns <= cols; c += kChainColumns) {
    Chain<P, N>(w + c * kPanelRows, panel_stride, x + c, ldx, kChainColumns, total);
  }
  if (c < cols) Chain<P, N>(w + c * kPanelRows, panel_stride, x + c, ldx, cols - c, total);
  for (size_t p = 0; p < P; ++p) {
    for (size_t n = 0; n < N; ++n) {
      StoreGroup16(total[p][n], y + n * ldy + p * kPanelRows, width(p));
    }
  }
}

// What the tiles of one block of columns have in common.
struct Block {
  const MatMulJob* job;
  size_t panel_begin;
  size_t panel_end;
  size_t column;  // first
  size_t cols;
};

template <size_t P, size_t N, typename T>
void TilePanels(const Block& block, size_t panel, const float* x, size_t ldx, size_t row) {
  const MatMulJob& job = *block.job;
  const size_t panel_stride = PanelBytes(job.w.kind, job.w.cols) / sizeof(T);
  const size_t last_row = (panel + P) * kPanelRows;
  const size_t last_width =
      last_row <= job.w.rows ? kPanelRows : kPanelRows - (last_row - job.w.rows);
  const T* w = reinterpret_cast<const T*>(job.w.panels) + panel * panel_stride;
  Tile<P, N>(w + block.column * kPanelRows, panel_stride, x, ldx, block.cols, block.column == 0,
             job.y + row * job.ldy + panel * kPanelRows, job.ldy, last_width);
}

// Panels from `panel` on: P at a time, the rest in halves.
template <size_t P, size_t N, typename T>
void PanelLoop(const Block& block, size_t panel, const float* x, size_t ldx, size_t row) {
  for (; panel + P <= block.panel_end; panel += P) TilePanels<P, N, T>(block, panel, x, ldx, row);
  if constexpr (P > 1) PanelLoop<P / 2, N, T>(block, panel, x, ldx, row);
}

// All panels of the block for N rows of x from `row` on.
template <size_t N>
void TileRows(const Block& block, size_t row) {
  const MatMulJob& job = *block.job;
  const float* x = job.x + row * job.ldx + block.column;
  size_t ldx = job.ldx;
  alignas(64) float packed[N > 4 ? N * kTileStride : 1];
  if constexpr (N > 4) {
    for (size_t n = 0; n < N; ++n) {
      std::copy_n(x + n * job.ldx, block.cols, packed + n * kTileStride);
    }
    x = packed;
    ldx = kTileStride;
  }
  if (job.w.kind == WeightKind::kBf16) {
    PanelLoop<PanelsFor(N), N, uint16_t>(block, block.panel_begin, x, ldx, row);
  } else {
    PanelLoop<PanelsFor(N), N, float>(block, block.panel_begin, x, ldx, row);
  }
}

template <size_t N>
void TileRowsUpTo(const Block& block, size_t row, size_t rows) {
  if (rows == N) {
    TileRows<N>(block, row);
  } else if constexpr (N > 1) {
    TileRowsUpTo<N - 1>(block, row, rows);
  }
}

void MatMulTileImpl(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                    size_t row_end) {
  const size_t rows = row_end - row_begin;
  const size_t tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (size_t column = 0; column < job.w.cols; column += kBlockColumns) {
    const Block block{&job, panel_begin, panel_end, column,
                      std::min(kBlockColumns, job.w.cols - column)};
    for (size_t tile = 0; tile < tiles; ++tile) {  // of about equal height
      const size_t begin = row_begin + rows * tile / tiles;
      const size_t end = row_begin + rows * (tile + 1) / tiles;
      TileRowsUpTo<kMaxTileRows>(block, begin, end - begin);
    }
  }
}

}  // namespace

void MatMulTileDispatch(const MatMulJob& job, size_t panel_begin, size_t panel_end,
                        size_t row_begin, size_t row_end) {
  MatMulTileImpl(job, panel_begin, panel_end, row_begin, row_end);
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(MatMulTileDispatch);

void MatMulTile(const MatMulJob& job, size_t panel_begin, size_t panel_end, size_t row_begin,
                size_t row_end) {
  if (job.w.kind == WeightKind::kQ8) {
    return Q8MatMulTile(job, panel_begin, panel_end, row_begin, row_end);
  }
  HWY_DYNAMIC_DISPATCH(MatMulTileDispatch)(job, panel_begin, panel_end, row_begin, row_end);
}

}  // namespace mk
#endif  // HWY_ONCE
