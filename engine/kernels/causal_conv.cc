#include "engine/kernels/causal_conv.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/causal_conv.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/math-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

// Input of channel group `c` that is `back` positions before position t.
HWY_INLINE const float* InputAt(const CausalConv& conv, const float* x, size_t ldx,
                                const float* history, size_t t, size_t back, size_t c) {
  if (back <= t) return x + (t - back) * ldx + c;
  return history + (conv.taps - 1 - (back - t)) * conv.channels + c;
}

void CausalConvSiluImpl(const CausalConv& conv, size_t begin, size_t end, const float* x,
                        size_t ldx, size_t n, const float* history, float* y, size_t ldy) {
  MapGroups(end - begin, [&](size_t offset, size_t width) HWY_ATTR {
    const size_t c = begin + offset;
    V16 weights[kMaxConvTaps];
    for (size_t k = 0; k < conv.taps; ++k) {
      weights[k] = LoadGroup16(conv.weights + k * conv.channels + c, width);
    }
    for (size_t t = 0; t < n; ++t) {
      V16 sum = Zero16();
      for (size_t k = 0; k < conv.taps; ++k) {
        const float* in = InputAt(conv, x, ldx, history, t, conv.taps - 1 - k, c);
        const V16 value = LoadGroup16(in, width);
        sum = k == 0 ? Mul16(weights[k], value) : Fma16(weights[k], value, sum);
      }
      StoreGroup16(Silu16(sum), y + t * ldy + c, width);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(CausalConvSiluImpl);

void CausalConvSilu(const CausalConv& conv, size_t begin, size_t end, const float* x, size_t ldx,
                    size_t n, float* history, float* y, size_t ldy) {
  HWY_DYNAMIC_DISPATCH(CausalConvSiluImpl)(conv, begin, end, x, ldx, n, history, y, ldy);
  AdvanceConvHistory(conv, begin, end, x, ldx, n, history);
}

void AdvanceConvHistory(const CausalConv& conv, size_t begin, size_t end, const float* x,
                        size_t ldx, size_t n, float* history) {
  const size_t kept = conv.taps - 1;
  const size_t old = n < kept ? kept - n : 0;  // rows of history that stay, moved to the front
  for (size_t row = 0; row < kept; ++row) {
    const float* source =
        row < old ? history + (row + n) * conv.channels : x + (n - kept + row) * ldx;
    std::copy(source + begin, source + end, history + row * conv.channels + begin);
  }
}

}  // namespace mk
#endif  // HWY_ONCE
