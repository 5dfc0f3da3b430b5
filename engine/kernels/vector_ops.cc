#include "engine/kernels/vector_ops.h"

#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/vector_ops.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/math-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

float DotImpl(const float* a, const float* b, size_t count) {
  return Dot16(a, b, count);
}

float SumImpl(const float* x, size_t count) {
  V16 sum = Zero16();
  size_t i = 0;
  for (; i + 16 <= count; i += 16) sum = Add16(sum, Load16(x + i));
  if (i < count) sum = Add16(sum, LoadPartial16(x + i, count - i));
  return ReduceSum16(sum);
}

float MaxImpl(const float* x, size_t count) {
  return LargestOf(x, count);
}

void AxpyImpl(float a, const float* x, float* y, size_t count) {
  const V16 factor = Set16(a);
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Fma16(factor, LoadGroup16(x + i, width), LoadGroup16(y + i, width)), y + i, width);
  });
}

void ScaleImpl(float a, const float* x, float* y, size_t count) {
  const V16 factor = Set16(a);
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Mul16(factor, LoadGroup16(x + i, width)), y + i, width);
  });
}

void AddImpl(const float* a, const float* b, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Add16(LoadGroup16(a + i, width), LoadGroup16(b + i, width)), y + i, width);
  });
}

void MultiplyImpl(const float* a, const float* b, float* y, size_t count) {
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Mul16(LoadGroup16(a + i, width), LoadGroup16(b + i, width)), y + i, width);
  });
}

float RmsNormImpl(const float* x, const float* w, float epsilon, float* y, size_t count) {
  const float squares = Dot16(x, x, count);
  if (count == 0) return squares;
  const float inverse = 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
  const V16 factor = Set16(inverse);
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    const V16 unit = Mul16(LoadGroup16(x + i, width), factor);
    StoreGroup16(Mul16(unit, LoadGroup16(w + i, width)), y + i, width);
  });
  return squares;
}

float ExpSumImpl(float* x, float max, size_t count) {
  const V16 top = Set16(max);
  V16 sum = Zero16();
  size_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const V16 e = Exp16(Sub16(Load16(x + i), top));
    Store16(e, x + i);
    sum = Add16(sum, e);
  }
  if (i < count) {
    // Lanes past the end must add nothing, and e^(0 - max) is not nothing.
    StorePartial16(Exp16(Sub16(LoadPartial16(x + i, count - i), top)), x + i, count - i);
    sum = Add16(sum, LoadPartial16(x + i, count - i));
  }
  return ReduceSum16(sum);
}

void DivideImpl(float divisor, float* x, size_t count) {
  const V16 d = Set16(divisor);
  MapGroups(count, [&](size_t i, size_t width) HWY_ATTR {
    StoreGroup16(Div16(LoadGroup16(x + i, width), d), x + i, width);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(DotImpl);
HWY_EXPORT(SumImpl);
HWY_EXPORT(MaxImpl);
HWY_EXPORT(AxpyImpl);
HWY_EXPORT(ScaleImpl);
HWY_EXPORT(AddImpl);
HWY_EXPORT(MultiplyImpl);
HWY_EXPORT(RmsNormImpl);
HWY_EXPORT(ExpSumImpl);
HWY_EXPORT(DivideImpl);

float Dot(std::span<const float> a, std::span<const float> b) {
  return HWY_DYNAMIC_DISPATCH(DotImpl)(a.data(), b.data(), a.size());
}

float SumSquares(std::span<const float> x) {
  return Dot(x, x);
}

float Sum(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(SumImpl)(x.data(), x.size());
}

float Max(std::span<const float> x) {
  return HWY_DYNAMIC_DISPATCH(MaxImpl)(x.data(), x.size());
}

void Axpy(float a, std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(AxpyImpl)(a, x.data(), y.data(), y.size());
}

void Scale(float a, std::span<const float> x, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(ScaleImpl)(a, x.data(), y.data(), y.size());
}

void Add(std::span<const float> a, std::span<const float> b, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(AddImpl)(a.data(), b.data(), y.data(), y.size());
}

void Multiply(std::span<const float> a, std::span<const float> b, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(MultiplyImpl)(a.data(), b.data(), y.data(), y.size());
}

float RmsNorm(std::span<const float> x, std::span<const float> w, float epsilon,
              std::span<float> y) {
  return HWY_DYNAMIC_DISPATCH(RmsNormImpl)(x.data(), w.data(), epsilon, y.data(), y.size());
}

bool RmsNormRows(const float* x, size_t ldx, size_t n, std::span<const float> w, float epsilon,
                 float* y, size_t ldy) {
  bool finite = true;
  for (size_t i = 0; i < n; ++i) {
    finite &= std::isfinite(
        HWY_DYNAMIC_DISPATCH(RmsNormImpl)(x + i * ldx, w.data(), epsilon, y + i * ldy, w.size()));
  }
  return finite;
}

void L2Normalize(std::span<const float> u, L2Epsilon epsilon, float scale, std::span<float> y) {
  const float squares = SumSquares(u);
  float length = std::sqrt(epsilon == L2Epsilon::kRoot ? squares + 1e-6f : squares);
  if (epsilon == L2Epsilon::kMax && length < 1e-12f) length = 1e-12f;  // NaN stays NaN
  Scale(scale / length, u, y);
}

float ExpSum(std::span<float> x, float max) {
  if (max == -std::numeric_limits<float>::infinity()) {
    // e^(-inf - -inf) would be NaN.
    for (float& value : x) value = value == value ? 0.0f : value;
    return Sum(x);
  }
  return HWY_DYNAMIC_DISPATCH(ExpSumImpl)(x.data(), max, x.size());
}

float Softmax(std::span<float> x) {
  if (x.empty()) return 0.0f;
  const float max = Max(x);
  if (max == -std::numeric_limits<float>::infinity()) {
    for (float& value : x) value = std::numeric_limits<float>::quiet_NaN();
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float sum = ExpSum(x, max);
  HWY_DYNAMIC_DISPATCH(DivideImpl)(sum, x.data(), x.size());
  return sum;
}

}  // namespace mk
#endif  // HWY_ONCE
