#include "engine/shadow/vector_sample.h"

#include <algorithm>

#include "engine/build/generator.h"
#include "engine/format/vq1.h"

namespace mk {

uint64_t SplitMix64::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  return MixBits(state_);
}

void VectorSample::Offer(std::span<const float> values) {
  for (size_t at = 0; at + kVq1Group <= values.size(); at += kVq1Group) {
    const std::span<const float> group = values.subspan(at, kVq1Group);
    if (offered_ < capacity_) {
      values_.insert(values_.end(), group.begin(), group.end());
    } else if (const uint64_t slot = random_.Below(offered_ + 1); slot < capacity_) {
      std::copy(group.begin(), group.end(),
                values_.begin() + static_cast<std::ptrdiff_t>(slot * kVq1Group));
    }
    ++offered_;
  }
}

}  // namespace mk
