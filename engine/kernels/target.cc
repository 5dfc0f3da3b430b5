#include "engine/kernels/target.h"

// Highway leaves AVX3_DL (Ice Lake, Zen 4 and later) out unless asked; it tells where AVX512_VNNI
// is.
#define HWY_WANT_AVX3_DL
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/kernels/target.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mk {
namespace HWY_NAMESPACE {

int64_t TargetImpl() {
  return HWY_TARGET;
}

}  // namespace HWY_NAMESPACE
}  // namespace mk
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mk {

HWY_EXPORT(TargetImpl);

std::string_view KernelTarget() {
  return hwy::TargetName(HWY_DYNAMIC_DISPATCH(TargetImpl)());
}

bool HasVnni() {
  return HWY_DYNAMIC_DISPATCH(TargetImpl)() == HWY_AVX3_DL;
}

}  // namespace mk
#endif  // HWY_ONCE
