#include "engine/kernels/q8_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/q8_rows.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

constexpr uint32_t kSmallest = 27u << 23;   // bits of 2^-100: a group below it is taken as 0
constexpr uint32_t kInfinite = 255u << 23;  // bits of infinity; NaN is above

// Bits of the largest |lane| of two V16: for magnitudes the order of the bits is that of the
// values, and whatever is not finite is on top.
HWY_INLINE uint32_t LargestMagnitude(const V16& a, const V16& b) {
  const auto magnitude = [](VF v) HWY_ATTR {
    return hn::And(hn::BitCast(DI(), v), hn::Set(DI(), 0x7fffffff));
  };
  VI best = hn::Zero(DI());
  for (size_t i = 0; i < kV16Parts; ++i) {
    best = hn::Max(best, hn::Max(magnitude(a.part[i]), magnitude(b.part[i])));
  }
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(DI(), best)));
}

// Rounds 16 lanes to bytes and adds them to `sum`.
HWY_INLINE void StoreBytes(const V16& v, int8_t* out, VI& sum) {
  for (size_t i = 0; i < kV16Parts; ++i) {
#if HWY_TARGET == HWY_SCALAR
    const auto q = static_cast<int32_t>(std::nearbyint(hn::GetLane(v.part[i])));
    out[i] = static_cast<int8_t>(q);
    sum = hn::Set(DI(), hn::GetLane(sum) + q);
#else
    const VI q = hn::NearestInt(v.part[i]);
    const hn::FixedTag<int8_t, kRegisterLanes> d8;
    hn::StoreU(hn::DemoteTo(d8, q), d8, out + i * kRegisterLanes);
    sum = hn::Add(sum, q);
#endif
  }
}

HWY_INLINE void QuantizeGroup(const V16& a, const V16& b, int8_t* values, float* scale,
                              int32_t* offset) {
  const uint32_t bits = LargestMagnitude(a, b);
  if (bits >= kInfinite || bits < kSmallest) {
    std::fill_n(values, kQ8Group, int8_t{0});
    *scale = bits < kInfinite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    *offset = 0;
    return;
  }
  float largest;
  std::memcpy(&largest, &bits, sizeof(largest));
  const V16 inverse = Set16(127.0f / largest);
  VI total = hn::Zero(DI());
  StoreBytes(Mul16(a, inverse), values, total);
  StoreBytes(Mul16(b, inverse), values + 16, total);
  *scale = largest / 127.0f;
  *offset = -kQ8Bias * hn::GetLane(hn::SumOfLanes(DI(), total));
}

void QuantizeRow(const float* x, size_t cols, const Q8Activations& out) {
  for (size_t g = 0; g < out.high.groups; ++g) {
    const float* in = x + g * kQ8Group;
    const size_t width = std::min(kQ8Group, cols - g * kQ8Group);
    const V16 a = LoadGroup16(in, std::min<size_t>(width, 16));
    const V16 b = width > 16 ? LoadGroup16(in + 16, width - 16) : Zero16();
    int8_t* values = out.high.values + g * kQ8Group;
    float* scale = out.high.scales + g;
    QuantizeGroup(a, b, values, scale, out.high.offsets + g);
    if (out.low.values == nullptr) continue;
    const V16 s = Set16(*scale);
    QuantizeGroup(NegFma16(LoadBytes16(values), s, a), NegFma16(LoadBytes16(values + 16), s, b),
                  out.low.values + g * kQ8Group, out.low.scales + g, out.low.offsets + g);
  }
}

}  // namespace

void QuantizeRowsImpl(const float* x, size_t ldx, size_t cols, size_t begin, size_t end,
                      const Q8Activations& out) {
  for (size_t row = begin; row < end; ++row) QuantizeRow(x + row * ldx, cols, out.From(row));
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(QuantizeRowsImpl);

void QuantizeRows(const float* x, size_t ldx, size_t cols, size_t begin, size_t end,
                  const Q8Activations& out) {
  HWY_DYNAMIC_DISPATCH(QuantizeRowsImpl)(x, ldx, cols, begin, end, out);
}

void QuantizeRows(const float* x, size_t ldx, size_t cols, size_t begin, size_t end,
                  const Q8Rows& out) {
  QuantizeRows(x, ldx, cols, begin, end, Q8Activations{out, {}});
}

}  // namespace mk
#endif  // HWY_ONCE
