#include "engine/kernels/index_score.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/index_score.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

void IndexScoresImpl(const float* products, size_t stride, const float* weights, size_t heads,
                     float* scores, size_t count) {
  MapGroups(count, [&](size_t i, size_t lanes) HWY_ATTR {
    V16 sum = Zero16();
    for (size_t h = 0; h < heads; ++h) {
      V16 v = LoadGroup16(products + h * stride + i, lanes);
      // NaN stays: it is what a comparison with it yields.
      for (size_t part = 0; part < kV16Parts; ++part) {
        v.part[part] = MaxPart(hn::Zero(DF()), v.part[part]);
      }
      sum = Fma16(v, Set16(weights[h]), sum);
    }
    StoreGroup16(sum, scores + i, lanes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(IndexScoresImpl);

void IndexScores(const float* products, size_t stride, std::span<const float> weights,
                 std::span<float> scores) {
  HWY_DYNAMIC_DISPATCH(IndexScoresImpl)
  (products, stride, weights.data(), weights.size(), scores.data(), scores.size());
}

}  // namespace mk
#endif  // HWY_ONCE
