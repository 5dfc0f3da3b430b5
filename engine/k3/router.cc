#include "engine/k3/router.h"

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
  for (size_t e = 0; e < logits.size(); ++e) {
    const float key = logits[e] + bias[e];
    if (filled == k && !(key > weights[k - 1])) continue;
    size_t at = filled < k ? filled++ : k - 1;
    for (; at > 0 && key > weights[at - 1]; --at) {
      weights[at] = weights[at - 1];
      experts[at] = experts[at - 1];
    }
    weights[at] = key;
    experts[at] = static_cast<int32_t>(e);
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
