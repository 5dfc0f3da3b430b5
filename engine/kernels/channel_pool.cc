#include "engine/kernels/channel_pool.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/channel_pool.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/math-inl.h"
#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

void PoolChannelsImpl(const PooledRow* rows, size_t count, float* y, size_t width) {
  MapGroups(width, [&](size_t i, size_t lanes) HWY_ATTR {
    V16 max = LoadGroup16(rows[0].scores + i, lanes);
    for (size_t t = 1; t < count; ++t) max = Max16(LoadGroup16(rows[t].scores + i, lanes), max);
    V16 sum = Zero16();
    V16 weights = Zero16();
    for (size_t t = 0; t < count; ++t) {
      const V16 e = Exp16(Sub16(LoadGroup16(rows[t].scores + i, lanes), max));
      sum = Fma16(e, LoadGroup16(rows[t].values + i, lanes), sum);
      weights = Add16(weights, e);
    }
    StoreGroup16(Div16(sum, weights), y + i, lanes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(PoolChannelsImpl);

void PoolChannels(std::span<const PooledRow> rows, std::span<float> y) {
  HWY_DYNAMIC_DISPATCH(PoolChannelsImpl)(rows.data(), rows.size(), y.data(), y.size());
}

}  // namespace mk
#endif  // HWY_ONCE
