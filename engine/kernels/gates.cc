#include "engine/kernels/gates.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/gates.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/math-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {
namespace {

// ln(1 + u) for u >= 0, finite. With y = 1 + u rounded, ln(1 + u) = ln y + c / y, c what rounding
// has lost. y = 2^k m with m in [2^-1/2, 2^1/2), ln m = 2 artanh(s), s = (m - 1) / (m + 1): the
// series up to s^9, the next term is below 3e-10 of the sum.
HWY_INLINE VF LogOnePlusPart(VF u) {
  const DF df;
  const DI di;
  const auto set = [](float v) HWY_ATTR { return hn::Set(DF(), v); };
  const VF one = set(1.0f);
  const VF y = hn::Add(one, u);
  const VF lost =
      hn::IfThenElse(hn::Lt(u, one), hn::Sub(u, hn::Sub(y, one)), hn::Sub(one, hn::Sub(y, u)));
  // Bits of y minus those of 2^-1/2: the exponent field then counts binades from there.
  const VI root = hn::Set(di, 0x3f3504f3);
  const VI k = hn::ShiftRight<23>(hn::Sub(hn::BitCast(di, y), root));
  const VF m = hn::BitCast(df, hn::Sub(hn::BitCast(di, y), hn::ShiftLeft<23>(k)));
  const VF s = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VF z = hn::Mul(s, s);
  VF p = set(2.0f / 9);
  p = FmaPart(p, z, set(2.0f / 7));
  p = FmaPart(p, z, set(2.0f / 5));
  p = FmaPart(p, z, set(2.0f / 3));
  const VF log_m = FmaPart(hn::Mul(s, z), p, hn::Add(s, s));
  const VF kf = hn::ConvertTo(df, k);
  // ln 2 in two floats; the first has so few bits that its product with k is exact.
  const VF low = FmaPart(kf, set(-0x1.05c61p-29f), hn::Add(log_m, hn::Div(lost, y)));
  return FmaPart(kf, set(0x1.62e43p-1f), low);
}

HWY_INLINE VF SqrtSoftplusPart(VF x) {
  const VF top = hn::Set(DF(), 20.0f);
  const VF soft = LogOnePlusPart(ExpPart(MinPart(x, top)));
  const VF value = hn::Sqrt(hn::IfThenElse(hn::Gt(x, top), x, soft));
  return hn::IfThenElse(hn::Eq(x, x), value, x);
}

}  // namespace

void SqrtSoftplusImpl(const float* x, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    V16 v = LoadGroup16(x + i, width);
    for (size_t part = 0; part < kV16Parts; ++part) v.part[part] = SqrtSoftplusPart(v.part[part]);
    StoreGroup16(v, y + i, width);
  });
}

void ClampedSwigluImpl(const float* gate, const float* up, float weight, float limit, float* y,
                       size_t count) {
  const V16 factor = Set16(weight);
  const VF high = hn::Set(DF(), limit > 0 ? limit : HUGE_VALF);
  const VF low = hn::Neg(high);
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    V16 g = LoadGroup16(gate + i, width);
    V16 u = LoadGroup16(up + i, width);
    for (size_t part = 0; part < kV16Parts; ++part) {
      // The second argument is what a comparison with NaN yields.
      g.part[part] = MinPart(high, g.part[part]);
      u.part[part] = MaxPart(low, MinPart(high, u.part[part]));
    }
    StoreGroup16(Mul16(Mul16(factor, Silu16(g)), u), y + i, width);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(SqrtSoftplusImpl);
HWY_EXPORT(ClampedSwigluImpl);

void SqrtSoftplus(std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(SqrtSoftplusImpl)(x.data(), y.data(), y.size());
}

void ClampedSwiglu(std::span<const float> gate, std::span<const float> up, float weight,
                   float limit, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(ClampedSwigluImpl)
  (gate.data(), up.data(), weight, limit, y.data(), y.size());
}

}  // namespace mk
#endif  // HWY_ONCE
