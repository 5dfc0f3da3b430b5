#include "engine/kernels/nibble_matmul.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "engine/kernels/nibble_panels.h"
#include "engine/kernels/target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/nibble_matmul.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/byte_dot-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// Register tiles: N rows of x by PanelsFor(N) panels of 16 outputs, each with a total and the sum
// of the group in progress.
#if HWY_TARGET == HWY_AVX3
constexpr size_t kMaxTileRows = 12;
constexpr size_t PanelsFor(size_t n) {
  return n <= 2 ? 4 : n <= 5 ? 2 : 1;
}
#elif HWY_TARGET == HWY_SCALAR
constexpr size_t kMaxTileRows = 1;
constexpr size_t PanelsFor(size_t) {
  return 1;
}
#else
constexpr size_t kMaxTileRows = 2;
constexpr size_t PanelsFor(size_t) {
  return 1;
}
#endif

constexpr size_t kEights = kNibbleGroup / 8;
constexpr size_t kEightBytes = 4 * kNibblePanelRows;

// Twice the value of each nibble, and the same plus 16.
alignas(16) constexpr int8_t kTwiceE2m1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};
alignas(16) constexpr int8_t kBiasedE2m1[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                                16, 15, 14, 13, 12, 10, 8,  4};
// Offsets of activations are those of a bias of 128 = 16 << 3.
constexpr int kOffsetShift = 3;

// ---- decoding ----

#if HWY_TARGET == HWY_SCALAR
// Four columns of sixteen rows by table: the low or the high halves of the bytes at p.
HWY_INLINE Bytes64 LookUp(const uint8_t* p, bool high, const int8_t* table) {
  Bytes64 r;
  for (size_t i = 0; i < 64; ++i) r.lane[i] = table[high ? p[i] >> 4 : p[i] & 15];
  return r;
}

// Column j of four, as floats.
HWY_INLINE V16 ColumnFloats(const Bytes64& b, size_t j) {
  V16 r;
  for (size_t i = 0; i < 16; ++i) r.part[i] = hn::Set(DF(), b.lane[4 * i + j]);
  return r;
}

HWY_INLINE I16 BytesToInts(const uint8_t* p) {
  I16 r;
  for (size_t i = 0; i < 16; ++i) r.part[i] = hn::Set(DI(), p[i]);
  return r;
}
#else
HWY_INLINE Bytes64 LookUp(const uint8_t* p, bool high, const int8_t* table) {
  const hn::Repartition<uint16_t, D8> d16;
  const hn::Repartition<uint8_t, D8> d8;
  const auto entries = hn::LoadDup128(D8(), table);
  Bytes64 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
    auto bytes = hn::LoadU(d8, p + i * 4 * kRegisterLanes);
    if (high) bytes = hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bytes)));
    const auto nibbles = hn::And(bytes, hn::Set(d8, uint8_t{15}));
    r.part[i] = hn::TableLookupBytes(entries, hn::BitCast(D8(), nibbles));
  }
  return r;
}

template <int kShift>
HWY_INLINE V16 ShiftedFloats(const Bytes64& b) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
    const VI lanes = hn::BitCast(DI(), b.part[i]);
    r.part[i] = hn::ConvertTo(DF(), hn::ShiftRight<24>(hn::ShiftLeft<kShift>(lanes)));
  }
  return r;
}

HWY_INLINE V16 ColumnFloats(const Bytes64& b, size_t j) {
  return j == 0   ? ShiftedFloats<24>(b)
         : j == 1 ? ShiftedFloats<16>(b)
         : j == 2 ? ShiftedFloats<8>(b)
                  : ShiftedFloats<0>(b);
}

HWY_INLINE I16 BytesToInts(const uint8_t* p) {
  const hn::FixedTag<uint8_t, kRegisterLanes> d8;
  I16 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
    r.part[i] = hn::PromoteTo(DI(), hn::LoadU(d8, p + i * kRegisterLanes));
  }
  return r;
}
#endif

// Halves of the scales of a group of sixteen rows.
template <bool kSquare>
HWY_INLINE V16 HalfScales(const uint8_t* p, float smax) {
  const I16 bytes = BytesToInts(p);
  if constexpr (kSquare) {
    const V16 t = Mul16(Add16(ToFloats16(bytes), Set16(1.0f)), Set16(1.0f / 256.0f));
    return Mul16(Mul16(Mul16(t, t), Set16(smax)), Set16(0.5f));
  } else {
    V16 r;  // 2^(s - 128); zero where that is subnormal
    for (size_t i = 0; i < kV16Parts; ++i) {
      const VI exponent = hn::Sub(hn::Max(bytes.part[i], hn::Set(DI(), 1)), hn::Set(DI(), 1));
      r.part[i] = hn::BitCast(DF(), hn::ShiftLeft<23>(exponent));
    }
    return r;
  }
}

// ---- activations as floats ----

// Adds the products with eight columns to `sum`, columns ascending.
template <size_t P, size_t N>
HWY_INLINE void EightColumns(const uint8_t* const (&p)[P], const float* x, size_t ldx,
                             V16 (&sum)[P][N]) {
#if HWY_TARGET == HWY_AVX3
  // The permutation looks at the four lowest bits of a lane: a table of sixteen floats.
  alignas(64) static constexpr float kTable[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                   0, -1, -2, -3, -4, -6, -8, -12};
  const __m512 table = _mm512_load_ps(kTable);
  __m512i lanes[P];
  for (size_t r = 0; r < P; ++r) lanes[r] = _mm512_loadu_si512(p[r]);
  for (size_t c = 0; c < 8; ++c) {
    const auto shift = static_cast<unsigned>(8 * (c % 4) + c / 4 * 4);
    V16 weights[P];
    for (size_t r = 0; r < P; ++r) {
      weights[r].part[0] = VF{_mm512_permutexvar_ps(_mm512_srli_epi32(lanes[r], shift), table)};
    }
    for (size_t n = 0; n < N; ++n) {
      const V16 value = Set16(x[n * ldx + c]);
      for (size_t r = 0; r < P; ++r) sum[r][n] = Fma16(weights[r], value, sum[r][n]);
    }
  }
#else
  for (size_t half = 0; half < 2; ++half) {
    Bytes64 bytes[P];
    for (size_t r = 0; r < P; ++r) bytes[r] = LookUp(p[r], half == 1, kTwiceE2m1);
    for (size_t j = 0; j < 4; ++j) {
      V16 weights[P];
      for (size_t r = 0; r < P; ++r) weights[r] = ColumnFloats(bytes[r], j);
      for (size_t n = 0; n < N; ++n) {
        const V16 value = Set16(x[n * ldx + 4 * half + j]);
        for (size_t r = 0; r < P; ++r) sum[r][n] = Fma16(weights[r], value, sum[r][n]);
      }
    }
  }
#endif
}

// What the tiles of a matrix have in common.
struct Walk {
  const ExpertJob* job;
  size_t panel_bytes;
  size_t scale_bytes;
  size_t groups;
  uintptr_t ahead;  // from a byte of the matrix to the same byte of the one wanted next

  void Fetch(const uint8_t* here) const {
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(here) + ahead), 0,
                       2);
  }
};

uintptr_t AheadOf(const ExpertJob& job) {
  if (job.ahead == nullptr) return 0;
  return reinterpret_cast<uintptr_t>(job.ahead) - reinterpret_cast<uintptr_t>(job.w.packed);
}

template <bool kSquare, size_t P, size_t N>
void FloatTile(const Walk& walk, const uint8_t* panel, size_t xr, V16 (&total)[P][N]) {
  const ExpertJob& job = *walk.job;
  const float* x = job.x + xr * job.ldx;
  for (size_t g = 0; g < walk.groups; ++g) {
    V16 sum[P][N];
    for (size_t p = 0; p < P; ++p) {
      for (size_t n = 0; n < N; ++n) sum[p][n] = Zero16();
    }
    for (size_t k = 0; k < kEights; ++k) {
      const uint8_t* eights[P];
      for (size_t p = 0; p < P; ++p) {
        eights[p] = panel + p * walk.panel_bytes + walk.scale_bytes + g * kNibbleGroupBytes +
                    k * kEightBytes;
        walk.Fetch(eights[p]);
      }
      EightColumns<P, N>(eights, x + g * kNibbleGroup + 8 * k, job.ldx, sum);
    }
    for (size_t p = 0; p < P; ++p) {
      const uint8_t* scales = panel + p * walk.panel_bytes + g * kNibblePanelRows;
      if (g % 4 == 0) walk.Fetch(scales);
      const V16 half = HalfScales<kSquare>(scales, job.w.smax);
      for (size_t n = 0; n < N; ++n) total[p][n] = Fma16(sum[p][n], half, total[p][n]);
    }
  }
}

// ---- activations as bytes ----

// Adds the products with four columns of sixteen rows: the low or the high halves of `eights`.
template <bool kVnni, size_t P, size_t N>
HWY_INLINE void FourColumns(const uint8_t* const (&eights)[P], bool high, const int8_t* x,
                            size_t x_stride, I16 (&sum)[P][N]) {
  Bytes64 weights[P];
  HWY_UNROLL(4)
  for (size_t p = 0; p < P; ++p) {
    weights[p] = LookUp(eights[p], high, kVnni ? kBiasedE2m1 : kTwiceE2m1);
  }
  HWY_UNROLL(12)
  for (size_t n = 0; n < N; ++n) {
    const Bytes64 four = RepeatBytes4(x + n * x_stride);
    HWY_UNROLL(4)
    for (size_t p = 0; p < P; ++p) {
      if constexpr (kVnni) {
        AddDotUnsigned(sum[p][n], weights[p], four);
      } else {
        AddDot(sum[p][n], weights[p], four);
      }
    }
  }
}

template <bool kVnni, bool kSquare, size_t P, size_t N>
void ByteTile(const Walk& walk, const uint8_t* panel, size_t xr, V16 (&total)[P][N]) {
  const ExpertJob& job = *walk.job;
  const Q8Rows x = job.q8.From(xr);
  for (size_t g = 0; g < walk.groups; ++g) {
    I16 sum[P][N];
    for (size_t n = 0; n < N; ++n) {
      // Biased weights are 16 too large: the offset takes 16 times the sum of x back.
      const I16 start = SetInts16(kVnni ? x.offsets[n * x.stride + g] >> kOffsetShift : 0);
      for (size_t p = 0; p < P; ++p) sum[p][n] = start;
    }
    const uint8_t* nibbles = panel + walk.scale_bytes + g * kNibbleGroupBytes;
    const int8_t* bytes = x.values + g * kQ8Group;
    HWY_UNROLL(4)
    for (size_t k = 0; k < kEights; ++k) {
      const uint8_t* eights[P];
      for (size_t p = 0; p < P; ++p) {
        eights[p] = nibbles + p * walk.panel_bytes + k * kEightBytes;
        walk.Fetch(eights[p]);
      }
      FourColumns<kVnni>(eights, false, bytes + 8 * k, x.stride * kQ8Group, sum);
      FourColumns<kVnni>(eights, true, bytes + 8 * k + 4, x.stride * kQ8Group, sum);
    }
    for (size_t p = 0; p < P; ++p) {
      const uint8_t* scales = panel + p * walk.panel_bytes + g * kNibblePanelRows;
      if (g % 4 == 0) walk.Fetch(scales);
      const V16 half = HalfScales<kSquare>(scales, job.w.smax);
      for (size_t n = 0; n < N; ++n) {
        const V16 both = Mul16(half, Set16(x.scales[n * x.stride + g]));
        total[p][n] = Fma16(ToFloats16(sum[p][n]), both, total[p][n]);
      }
    }
  }
}

// ---- loops ----

enum class Mode { kFloats, kBytes, kBytesVnni };

template <Mode kMode, bool kSquare, size_t P, size_t N>
void Tile(const Walk& walk, size_t panel, size_t row_end, size_t xr) {
  const ExpertJob& job = *walk.job;
  const uint8_t* base = job.w.packed + panel * walk.panel_bytes;
  V16 total[P][N];
  for (size_t p = 0; p < P; ++p) {
    for (size_t n = 0; n < N; ++n) total[p][n] = Zero16();
  }
  if constexpr (kMode == Mode::kFloats) {
    FloatTile<kSquare, P, N>(walk, base, xr, total);
  } else {
    ByteTile<kMode == Mode::kBytesVnni, kSquare, P, N>(walk, base, xr, total);
  }
  for (size_t p = 0; p < P; ++p) {
    const size_t first = (panel + p) * kNibblePanelRows;
    const size_t width = std::min(kNibblePanelRows, row_end - first);
    for (size_t n = 0; n < N; ++n) {
      StoreGroup16(total[p][n], job.y + (xr + n) * job.ldy + first, width);
    }
  }
}

// Panels from `panel` on: P at a time, the rest in halves.
template <Mode kMode, bool kSquare, size_t P, size_t N>
void PanelLoop(const Walk& walk, size_t panel, size_t panel_end, size_t row_end, size_t xr) {
  for (; panel + P <= panel_end; panel += P) Tile<kMode, kSquare, P, N>(walk, panel, row_end, xr);
  if constexpr (P > 1) PanelLoop<kMode, kSquare, P / 2, N>(walk, panel, panel_end, row_end, xr);
}

template <Mode kMode, bool kSquare, size_t N>
void RowsUpTo(const Walk& walk, size_t begin, size_t end, size_t xr, size_t n) {
  if (n == N) {
    const size_t panel_end = (end + kNibblePanelRows - 1) / kNibblePanelRows;
    PanelLoop<kMode, kSquare, PanelsFor(N), N>(walk, begin / kNibblePanelRows, panel_end, end, xr);
  } else if constexpr (N > 1) {
    RowsUpTo<kMode, kSquare, N - 1>(walk, begin, end, xr, n);
  }
}

template <Mode kMode, bool kSquare>
void MatrixRows(const ExpertJob& job, size_t begin, size_t end) {
  const Walk walk{&job, NibblePanelBytes(job.w.cols), NibbleScaleBytes(job.w.cols),
                  job.w.cols / kNibbleGroup, AheadOf(job)};
  // Matrix rows in chunks that stay in the first level cache while the rows of x pass by.
  const size_t panels =
      std::max<size_t>(1, (size_t{16} << 10) / std::max<size_t>(1, walk.panel_bytes));
  const size_t chunk = panels * kNibblePanelRows;
  const size_t tiles = (job.n + kMaxTileRows - 1) / kMaxTileRows;
  for (size_t row = begin; row < end; row += chunk) {
    const size_t row_end = std::min(end, row + chunk);
    for (size_t tile = 0; tile < tiles; ++tile) {  // of about equal height
      const size_t xr = job.n * tile / tiles;
      const size_t xr_end = job.n * (tile + 1) / tiles;
      RowsUpTo<kMode, kSquare, kMaxTileRows>(walk, row, row_end, xr, xr_end - xr);
    }
  }
}

template <Mode kMode>
void Matrix(const ExpertJob& job, size_t begin, size_t end) {
  if (job.w.kind == ExpertKind::kMxfp4Sq) {
    MatrixRows<kMode, true>(job, begin, end);
  } else {
    MatrixRows<kMode, false>(job, begin, end);
  }
}

}  // namespace

void NibbleMatMulImpl(const ExpertJob& job, size_t begin, size_t end) {
  if (job.q8.values == nullptr) return Matrix<Mode::kFloats>(job, begin, end);
  if constexpr (kMayHaveVnni) {
    if (HasVnni()) return Matrix<Mode::kBytesVnni>(job, begin, end);
  }
  Matrix<Mode::kBytes>(job, begin, end);
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(NibbleMatMulImpl);

void NibbleMatMul(const ExpertJob& job, size_t row_begin, size_t row_end) {
  HWY_DYNAMIC_DISPATCH(NibbleMatMulImpl)(job, row_begin, row_end);
}

}  // namespace mk
#endif  // HWY_ONCE
