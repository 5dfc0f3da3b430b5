// The router: which experts serve a token, and with what weight.
//
//   s = sigmoid(logits);  key = s + bias
//   selected = the k largest keys, largest first; of equal keys the smaller id first
//   weight_e = s_e / (sum of the selected s + 1e-20) * scale     (sum in order of selection)
//
// The bias steers the selection only.

#pragma once

#include <cstdint>
#include <span>

namespace mk::k3 {

// logits [E] are replaced by s. Writes k ids and weights, best first; k = experts.size() <= E.
// Returns false when a logit is not finite; the outputs are then undefined.
bool Route(std::span<float> logits, std::span<const float> bias, float scale,
           std::span<int32_t> experts, std::span<float> weights);

}  // namespace mk::k3
