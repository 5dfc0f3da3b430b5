#include "engine/dsv4/router.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "engine/kernels/gates.h"
#include "engine/kernels/vector_ops.h"

namespace mk::dsv4 {
namespace {

bool Score(std::span<float> logits) {
  if (!std::isfinite(Sum(logits))) return false;
  SqrtSoftplus(logits, logits);
  return true;
}

void Weigh(std::span<const float> scores, float scale, std::span<const int32_t> experts,
           std::span<float> weights) {
  float sum = 0;
  for (size_t i = 0; i < experts.size(); ++i) {
    weights[i] = scores[static_cast<size_t>(experts[i])];
    sum += weights[i];
  }
  const float divisor = std::max(sum, 1e-20f);
  for (float& weight : weights) weight = weight / divisor * scale;
}

}  // namespace

bool RouteByScore(std::span<float> logits, std::span<const float> bias, float scale,
                  std::span<int32_t> experts, std::span<float> weights) {
  if (!Score(logits)) return false;
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
  Weigh(logits, scale, experts, weights);
  return true;
}

bool RouteByTable(std::span<float> logits, std::span<const int32_t> row, float scale,
                  std::span<int32_t> experts, std::span<float> weights) {
  if (!Score(logits)) return false;
  std::copy(row.begin(), row.end(), experts.begin());
  Weigh(logits, scale, experts, weights);
  return true;
}

}  // namespace mk::dsv4
