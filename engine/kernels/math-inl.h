// exp, tanh, sigmoid, SiLU and SiTU of sixteen lanes. See activations.h for accuracy and v16-inl.h
// for how to include.

#if defined(MK_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MK_KERNELS_MATH_INL_H_
#undef MK_KERNELS_MATH_INL_H_
#else
#define MK_KERNELS_MATH_INL_H_
#endif

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

// e^x = 2^k e^r, k = round(x log2 e), r = x - k ln 2 in [-0.347, 0.347]: ln 2 is split in two
// floats; e^r = 1 + r + r^2 q(r), q a minimax polynomial (relative error 3e-9).
HWY_INLINE VF ExpPart(VF x) {
  const DF df;
  const DI di;
  const auto set = [](float v) HWY_ATTR { return hn::Set(DF(), v); };
  // Beyond these e^x is below the smallest normal float, or rounds to infinity.
  const VF low = set(-87.33654f);
  const VF high = set(88.72283f);
  const VF clamped = MinPart(MaxPart(x, low), high);
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low mantissa bits.
  const VF magic = set(12582912.0f);
  const VF shifted = hn::Add(hn::Mul(clamped, set(0x1.715476p+0f)), magic);
  const VF k = hn::Sub(shifted, magic);
  VF r = FmaPart(k, set(-0x1.62e43p-1f), clamped);
  r = FmaPart(k, set(0x1.05c61p-29f), r);
  VF q = set(0x1.6a23fp-10f);
  q = FmaPart(q, r, set(0x1.123a0ap-7f));
  q = FmaPart(q, r, set(0x1.5558f2p-5f));
  q = FmaPart(q, r, set(0x1.555492p-3f));
  q = FmaPart(q, r, set(0x1.fffffcp-2f));
  const VF p = hn::Add(FmaPart(hn::Mul(r, r), q, r), set(1.0f));
  // 2^k in two factors: k reaches 128, which one exponent field does not hold.
  const VI ki = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
  const VI k1 = hn::ShiftRight<1>(ki);
  const VI k2 = hn::Sub(ki, k1);
  const VI bias = hn::Set(di, 127);
  const VF s1 = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(k1, bias)));
  const VF s2 = hn::BitCast(df, hn::ShiftLeft<23>(hn::Add(k2, bias)));
  VF result = hn::Mul(hn::Mul(p, s1), s2);
  result = hn::IfThenElse(hn::Lt(x, low), hn::Zero(df), result);
  result = hn::IfThenElse(hn::Gt(x, high), set(HUGE_VALF), result);
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

// 1 / (1 + e^-x)
HWY_INLINE VF SigmoidPart(VF x) {
  const VF one = hn::Set(DF(), 1.0f);
  return hn::Div(one, hn::Add(one, ExpPart(hn::Neg(x))));
}

// |x| < 0.625: x + x^3 P(x^2) (relative error 5e-9), else 1 - 2 / (e^2|x| + 1) with x's sign.
HWY_INLINE VF TanhPart(VF x) {
  const auto set = [](float v) HWY_ATTR { return hn::Set(DF(), v); };
  const VF z = hn::Mul(x, x);
  VF p = set(-0.0057049873f);
  p = FmaPart(p, z, set(0.020639088f));
  p = FmaPart(p, z, set(-0.053739715f));
  p = FmaPart(p, z, set(0.13331442f));
  p = FmaPart(p, z, set(-0.3333328f));
  const VF near_zero = FmaPart(hn::Mul(x, z), p, x);
  const VF magnitude = hn::Abs(x);
  const VF one = set(1.0f);
  const VF e = ExpPart(hn::Add(magnitude, magnitude));
  const VF far = hn::Sub(one, hn::Div(set(2.0f), hn::Add(e, one)));
  const VF signed_far = hn::CopySign(far, x);
  const VF result = hn::IfThenElse(hn::Lt(magnitude, set(0.625f)), near_zero, signed_far);
  return hn::IfThenElse(hn::Eq(x, x), result, x);
}

HWY_INLINE V16 Exp16(const V16& x) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = ExpPart(x.part[i]);
  return r;
}

HWY_INLINE V16 Sigmoid16(const V16& x) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = SigmoidPart(x.part[i]);
  return r;
}

HWY_INLINE V16 Tanh16(const V16& x) {
  V16 r;
  for (size_t i = 0; i < kV16Parts; ++i) r.part[i] = TanhPart(x.part[i]);
  return r;
}

// x / (1 + e^-x). For x below -88.7 the quotient is -x/inf = -0, as the exact value is negligible.
HWY_INLINE V16 Silu16(const V16& x) {
  V16 r;
  const VF one = hn::Set(DF(), 1.0f);
  for (size_t i = 0; i < kV16Parts; ++i) {
    r.part[i] = hn::Div(x.part[i], hn::Add(one, ExpPart(hn::Neg(x.part[i]))));
  }
  return r;
}

// [beta tanh(g / beta) sigmoid(g)] [beta2 tanh(u / beta2)]
HWY_INLINE V16 Situ16(const V16& g, const V16& u, float beta, float beta2) {
  const V16 gate_cap = Set16(beta);
  const V16 up_cap = Set16(beta2);
  const V16 gate = Mul16(Mul16(gate_cap, Tanh16(Div16(g, gate_cap))), Sigmoid16(g));
  return Mul16(gate, Mul16(up_cap, Tanh16(Div16(u, up_cap))));
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#endif  // MK_KERNELS_MATH_INL_H_
