#include "engine/kernels/stream_mix.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/stream_mix.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#include "engine/kernels/v16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

void ReadStreamsImpl(const float* x, const float* pre, size_t streams, float* u, size_t width) {
  MapGroups(width, [&](size_t i, size_t lanes) HWY_ATTR {
    V16 sum = Zero16();
    for (size_t j = 0; j < streams; ++j) {
      sum = Fma16(Set16(pre[j]), LoadGroup16(x + j * width + i, lanes), sum);
    }
    StoreGroup16(sum, u + i, lanes);
  });
}

void WriteStreamsImpl(const float* y, const float* post, const float* comb, size_t streams,
                      float* x, size_t width) {
  MapGroups(width, [&](size_t i, size_t lanes) HWY_ATTR {
    const V16 output = LoadGroup16(y + i, lanes);
    V16 old[kMaxStreams];
    for (size_t a = 0; a < streams; ++a) old[a] = LoadGroup16(x + a * width + i, lanes);
    for (size_t b = 0; b < streams; ++b) {
      V16 sum = Mul16(Set16(post[b]), output);
      for (size_t a = 0; a < streams; ++a) {
        sum = Fma16(Set16(comb[a * streams + b]), old[a], sum);
      }
      StoreGroup16(sum, x + b * width + i, lanes);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(ReadStreamsImpl);
HWY_EXPORT(WriteStreamsImpl);

void ReadStreams(std::span<const float> x, std::span<const float> pre, std::span<float> u) {
  HWY_DYNAMIC_DISPATCH(ReadStreamsImpl)(x.data(), pre.data(), pre.size(), u.data(), u.size());
}

void WriteStreams(std::span<const float> y, std::span<const float> post,
                  std::span<const float> comb, std::span<float> x) {
  HWY_DYNAMIC_DISPATCH(WriteStreamsImpl)
  (y.data(), post.data(), comb.data(), post.size(), x.data(), y.size());
}

}  // namespace mk
#endif  // HWY_ONCE
