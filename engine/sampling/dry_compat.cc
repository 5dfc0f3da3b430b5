#include "engine/sampling/dry_compat.h"

#include <algorithm>
#include <cmath>

namespace mk {

DryCompat::DryCompat(float strength) {
  for (size_t distance = 0; distance < penalties_.size(); ++distance) {
    penalties_[distance] = strength * std::pow(0.9f, static_cast<float>(distance));
  }
}

void DryCompat::Apply(std::span<const int32_t> emitted, std::span<float> logits) {
  const auto w = emitted.last(std::min(emitted.size(), kWindow));
  if (w.size() < 3) return;
  for (size_t n = 3; n <= std::min(kLongest, w.size()); ++n) {
    const size_t length = n - 1;
    const auto suffix = w.last(length);
    for (size_t i = 0; i + length < w.size(); ++i) {
      const auto here = w.subspan(i, length);
      if (!std::equal(here.begin(), here.end(), suffix.begin())) continue;
      logits[static_cast<size_t>(w[i + length])] -= penalties_[w.size() - length - i];
    }
  }
}

}  // namespace mk
