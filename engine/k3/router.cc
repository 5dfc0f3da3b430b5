#include "engine/k3/router.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/activations.h"
#include "engine/kernels/vector_ops.h"

namespace mk::k3 {

bool Route(std::span<float> logits, std::span<const float> bias, float scale,
           std::span<int32_t> experts, std::span<float> weights) {
  if (!std::isfinite(Sum(logits))) return false;
  Sigmoid(logits, logits);
  // Ids come in ascending order, so that "strictly larger" leaves the smaller id in front of an
  // equal key. `weights` holds the keys meanwhile.
  const size_t k = experts.size();
  size_t filled = 0;
  const auto offer = [&](size_t e, float key) {
    if (filled == k && !(key > weights[k - 1])) return;
    size_t at = filled < k ? filled++ : k - 1;
    for (; at > 0 && key > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      experts[at] = experts[at - 1];
    }
    weights[at] = key;
    experts[at] = static_cast<int32_t>(e);
  };
  // Most blocks hold no key that is among the largest.
  constexpr size_t kBlock = 16;
  for (size_t first = 0; first < logits.size(); first += kBlock) {
    const size_t count = std::min(kBlock, logits.size() - first);
    float keys[kBlock];
    for (size_t i = 0; i < count; ++i) keys[i] = logits[first + i] + bias[first + i];
    if (filled == k && count == kBlock) {
      int larger = 0;
      for (size_t i = 0; i < kBlock; ++i) larger += keys[i] > weights[k - 1] ? 1 : 0;
      if (larger == 0) continue;
    }
    for (size_t i = 0; i < count; ++i) offer(first + i, keys[i]);
  }
  float sum = 0;
  for (size_t i = 0; i < k; ++i) {
    weights[i] = logits[static_cast<size_t>(experts[i])];
    sum += weights[i];
  }
  for (float& weight : weights) weight = weight / (sum + 1e-20f) * scale;
  return true;
}

}  // namespace mk::k3
