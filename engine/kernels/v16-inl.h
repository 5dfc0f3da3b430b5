// V16: sixteen floats, whatever the width of the machine's registers: one of 512 bits, two of 256,
// four of 128, or sixteen scalars. Kernels written with it compute the same bits on every
// processor: lane mapping and reduction trees are those of sixteen lanes, and Fma rounds once
// everywhere (std::fma where there is no instruction).
//
// Include inside a Highway per-target source (after foreach_target.h and highway.h); everything is
// in mk::HWY_NAMESPACE. Pointers need no alignment unless said so.
//
// Targets compiled: AVX-512 (AVX3), AVX2 with FMA, NEON, and scalar code for all others, which is
// right but slow (see CMakeLists.txt: targets without fused multiply-add are left out).

#if defined(MK_KERNELS_V16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MK_KERNELS_V16_INL_H_
#undef MK_KERNELS_V16_INL_H_
#else
#define MK_KERNELS_V16_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Lanes of one register, and registers of a V16.
#if HWY_TARGET == HWY_SCALAR
inline constexpr size_t kRegisterLanes = 1;
#else
inline constexpr size_t kRegisterLanes = HWY_MIN(size_t{16}, HWY_MAX_BYTES / sizeof(float));
#endif
inline constexpr size_t kV16Parts = 16 / kRegisterLanes;

using DF = hn::FixedTag<float, kRegisterLanes>;
using DI = hn::FixedTag<int32_t, kRegisterLanes>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;

// GCC compiles an implicit constructor without the target's instructions, which registers of NEON
// then cannot be inlined into; hence written out here and in structs like it.
struct V16 {
  HWY_INLINE V16() {}
  VF part[kV16Parts];
};

// ---- one register ----

// a * b + c, rounded once.
HWY_INLINE VF FmaPart(VF a, VF b, VF c) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(DF(), std::fma(hn::GetLane(a), hn::GetLane(b), hn::GetLane(c)));
#else
  return hn::MulAdd(a, b, c);
#endif
}

// a > b ? a : b; b when either is NaN.
HWY_INLINE VF MaxPart(VF a, VF b) {
  return hn::IfThenElse(hn::Gt(a, b), a, b);
}

// a < b ? a : b; b when either is NaN.
HWY_INLINE VF MinPart(VF a, VF b) {
  return hn::IfThenElse(hn::Lt(a, b), a, b);
}

// ---- loads and stores ----

HWY_INLINE V16 Zero16() {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Zero(DF());
  return r;
}

HWY_INLINE V16 Set16(float value) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Set(DF(), value);
  return r;
}

HWY_INLINE V16 Load16(const float* p) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::LoadU(DF(), p + i * kRegisterLanes);
  return r;
}

// p aligned to 64 bytes.
HWY_INLINE V16 LoadAligned16(const float* p) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Load(DF(), p + i * kRegisterLanes);
  return r;
}

HWY_INLINE void Store16(const V16& v, float* p) {
  for (size_t i = 0; i < kV16Parts; ++i) hn::StoreU(v.part[i], DF(), p + i * kRegisterLanes);
}

// The first `count` < 16 floats, the other lanes zero; nothing beyond them is read.
HWY_INLINE V16 LoadPartial16(const float* p, size_t count) {
  alignas(64) float buffer[16] = {};
  for (size_t i = 0; i < count; ++i) buffer[i] = p[i];
  return LoadAligned16(buffer);
}

// The first `count` < 16 lanes; nothing beyond them is written.
HWY_INLINE void StorePartial16(const V16& v, float* p, size_t count) {
  alignas(64) float buffer[16];
  Store16(v, buffer);
  for (size_t i = 0; i < count; ++i) p[i] = buffer[i];
}

// Sixteen signed bytes as floats.
HWY_INLINE V16 LoadBytes16(const int8_t* p) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
#if HWY_TARGET == HWY_SCALAR
    r.part[i] = hn::Set(DF(), p[i]);
#else
    const hn::FixedTag<int8_t, kRegisterLanes> d8;
    r.part[i] = hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(d8, p + i * kRegisterLanes)));
#endif
  }
  return r;
}

// ---- arithmetic, lane by lane ----

HWY_INLINE V16 Add16(const V16& a, const V16& b) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Add(a.part[i], b.part[i]);
  return r;
}

HWY_INLINE V16 Sub16(const V16& a, const V16& b) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Sub(a.part[i], b.part[i]);
  return r;
}

HWY_INLINE V16 Mul16(const V16& a, const V16& b) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Mul(a.part[i], b.part[i]);
  return r;
}

HWY_INLINE V16 Div16(const V16& a, const V16& b) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Div(a.part[i], b.part[i]);
  return r;
}

// a * b + c, rounded once.
HWY_INLINE V16 Fma16(const V16& a, const V16& b, const V16& c) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = FmaPart(a.part[i], b.part[i], c.part[i]);
  return r;
}

// c - a * b, rounded once.
HWY_INLINE V16 NegFma16(const V16& a, const V16& b, const V16& c) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) {
    r.part[i] = FmaPart(hn::Neg(a.part[i]), b.part[i], c.part[i]);
  }
  return r;
}

// a > b ? a : b; b when either is NaN.
HWY_INLINE V16 Max16(const V16& a, const V16& b) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = MaxPart(a.part[i], b.part[i]);
  return r;
}

HWY_INLINE V16 Neg16(const V16& a) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = hn::Neg(a.part[i]);
  return r;
}

// ---- reductions ----

#if HWY_TARGET != HWY_SCALAR
// The first two levels of the tree: lane j with j+8, then j+4.
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> SumToFour(const V16& v) {
#if HWY_MAX_BYTES >= 32
  const hn::FixedTag<float, 4> d4;
#if HWY_MAX_BYTES >= 64
  const hn::FixedTag<float, 8> d8;
  const auto eight = hn::Add(hn::LowerHalf(d8, v.part[0]), hn::UpperHalf(d8, v.part[0]));
#else
  const auto eight = hn::Add(v.part[0], v.part[1]);
#endif
  return hn::Add(hn::LowerHalf(d4, eight), hn::UpperHalf(d4, eight));
#else
  return hn::Add(hn::Add(v.part[0], v.part[2]), hn::Add(v.part[1], v.part[3]));
#endif
}
#endif

// The tree of all sums: lane j with j+8, then j+4, j+2, j+1.
HWY_INLINE float ReduceSum16(const V16& v) {
#if HWY_TARGET == HWY_SCALAR
  float lane[16];
  for (size_t i = 0; i < 16; ++i) lane[i] = hn::GetLane(v.part[i]);
  for (size_t half = 8; half > 0; half /= 2) {
    for (size_t i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
#else
  auto four = SumToFour(v);
  four = hn::Add(four, hn::Shuffle1032(four));
  four = hn::Add(four, hn::Shuffle2301(four));
  return hn::GetLane(four);
#endif
}

// out[i] = ReduceSum16 of the i-th argument, at little more than the cost of one.
HWY_INLINE void ReduceSum16x4(const V16& v0, const V16& v1, const V16& v2, const V16& v3,
                              float* out) {
#if HWY_TARGET == HWY_SCALAR
  out[0] = ReduceSum16(v0);
  out[1] = ReduceSum16(v1);
  out[2] = ReduceSum16(v2);
  out[3] = ReduceSum16(v3);
#else
  const hn::FixedTag<float, 4> d4;
  // [a0+a2, a1+a3, b0+b2, b1+b3]
  const auto add_pairs = [](auto a4, auto b4) HWY_ATTR {
    const hn::FixedTag<float, 4> df;
    const hn::FixedTag<uint64_t, 2> du;
    const auto a = hn::BitCast(du, a4);
    const auto b = hn::BitCast(du, b4);
    return hn::Add(hn::BitCast(df, hn::InterleaveLower(du, a, b)),
                   hn::BitCast(df, hn::InterleaveUpper(du, a, b)));
  };
  const auto even = add_pairs(SumToFour(v0), SumToFour(v2));
  const auto odd = add_pairs(SumToFour(v1), SumToFour(v3));
  const auto first = hn::OddEven(hn::Shuffle2301(odd), even);
  const auto second = hn::OddEven(odd, hn::Shuffle2301(even));
  hn::StoreU(hn::Add(first, second), d4, out);
#endif
}

// The sums of the lanes of a tile: y[n * ldy + r] = ReduceSum16(acc[r][n]).
template <size_t R, size_t N>
HWY_INLINE void StoreSums16(const V16 (&acc)[R][N], float* y, size_t ldy) {
  constexpr size_t kCount = R * N;
  float sums[kCount];
  const auto at = [&](size_t i) HWY_ATTR -> const V16& { return acc[i % R][i / R]; };
  size_t i = 0;
  for (; i + 4 <= kCount; i += 4) {
    ReduceSum16x4(at(i), at(i + 1), at(i + 2), at(i + 3), sums + i);
  }
  for (; i < kCount; ++i) sums[i] = ReduceSum16(at(i));
  for (size_t n = 0; n < N; ++n) {
    for (size_t r = 0; r < R; ++r) y[n * ldy + r] = sums[n * R + r];
  }
}

// Largest lane (no NaN among them).
HWY_INLINE float ReduceMax16(const V16& v) {
  alignas(64) float lane[16];
  Store16(v, lane);
  float best = lane[0];
  for (size_t i = 1; i < 16; ++i) best = lane[i] > best ? lane[i] : best;
  return best;
}

// Largest of `count` floats, -inf of none; NaN does not win over a number before it.
HWY_INLINE float LargestOf(const float* x, size_t count) {
  float best = -HUGE_VALF;
  size_t i = 0;
  if (count >= 16) {
    V16 lanes = Load16(x);
    for (i = 16; i + 16 <= count; i += 16) lanes = Max16(Load16(x + i), lanes);
    best = ReduceMax16(lanes);
  }
  for (; i < count; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// sum_i a[i] b[i]: one chain of Fma per lane, then the tree. The dot product of vector_ops.h.
HWY_INLINE float Dot16(const float* a, const float* b, size_t count) {
  V16 sum = Zero16();
  size_t i = 0;
  for (; i + 16 <= count; i += 16) sum = Fma16(Load16(a + i), Load16(b + i), sum);
  if (i < count) sum = Fma16(LoadPartial16(a + i, count - i), LoadPartial16(b + i, count - i), sum);
  return ReduceSum16(sum);
}

// ---- vectors of any length ----

HWY_INLINE V16 LoadGroup16(const float* p, size_t width) {
  return width == 16 ? Load16(p) : LoadPartial16(p, width);
}

HWY_INLINE void StoreGroup16(const V16& v, float* p, size_t width) {
  if (width == 16) {
    Store16(v, p);
  } else {
    StorePartial16(v, p, width);
  }
}

// Calls body(offset, width) for every 16 elements, width < 16 for the tail; `body` reads and writes
// with LoadGroup16 and StoreGroup16.
template <class Body>
HWY_INLINE void MapGroups(size_t count, const Body& body) {
  size_t i = 0;
  for (; i + 16 <= count; i += 16) body(i, 16);
  if (i < count) body(i, count - i);
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#endif  // MK_KERNELS_V16_INL_H_
