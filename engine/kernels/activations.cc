#include "engine/kernels/activations.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/activations.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/math-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

void ExpImpl(const float* x, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width)
                       HWY_ATTR { StoreGroup16(Exp16(LoadGroup16(x + i, width)), y + i, width); });
}

void TanhImpl(const float* x, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width)
                       HWY_ATTR { StoreGroup16(Tanh16(LoadGroup16(x + i, width)), y + i, width); });
}

void SigmoidImpl(const float* x, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Sigmoid16(LoadGroup16(x + i, width)), y + i, width);
  });
}

void SiluImpl(const float* x, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width)
                       HWY_ATTR { StoreGroup16(Silu16(LoadGroup16(x + i, width)), y + i, width); });
}

void SigmoidGateImpl(const float* gate, const float* x, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Mul16(LoadGroup16(x + i, width), Sigmoid16(LoadGroup16(gate + i, width))), y + i,
                 width);
  });
}

void SituImpl(const float* g, const float* u, SituCaps caps, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    const V16 value =
        Situ16(LoadGroup16(g + i, width), LoadGroup16(u + i, width), caps.gate, caps.up);
    StoreGroup16(value, y + i, width);
  });
}

void DecayGateImpl(const float* z, const float* bias, const float* rate, float floor, float* y,
                   size_t count) {
  const V16 factor = Set16(floor);
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    const V16 sum = Add16(LoadGroup16(z + i, width), LoadGroup16(bias + i, width));
    const V16 gate = Sigmoid16(Mul16(LoadGroup16(rate + i, width), sum));
    StoreGroup16(Mul16(factor, gate), y + i, width);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(ExpImpl);
HWY_EXPORT(TanhImpl);
HWY_EXPORT(SigmoidImpl);
HWY_EXPORT(SiluImpl);
HWY_EXPORT(SigmoidGateImpl);
HWY_EXPORT(SituImpl);
HWY_EXPORT(DecayGateImpl);

void Exp(std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(ExpImpl)(x.data(), y.data(), y.size());
}

void Tanh(std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(TanhImpl)(x.data(), y.data(), y.size());
}

void Sigmoid(std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(SigmoidImpl)(x.data(), y.data(), y.size());
}

void Silu(std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(SiluImpl)(x.data(), y.data(), y.size());
}

void SigmoidGate(std::span<const float> gate, std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(SigmoidGateImpl)(gate.data(), x.data(), y.data(), y.size());
}

void Situ(std::span<const float> g, std::span<const float> u, SituCaps caps, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(SituImpl)(g.data(), u.data(), caps, y.data(), y.size());
}

void DecayGate(std::span<const float> z, std::span<const float> bias, std::span<const float> rate,
               float floor, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(DecayGateImpl)
  (z.data(), bias.data(), rate.data(), floor, y.data(), y.size());
}

}  // namespace mk
#endif  // HWY_ONCE
