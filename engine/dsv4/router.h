// The router: which experts serve a token, and with what weight.
//
//   s = sqrt(softplus(logits))
//   selected = the k largest of s + bias, largest first; of equal keys the smaller id first
//              (hash layers: the row of the token in a table, in its order)
//   weight_e = s_e / max(sum of the selected s, 1e-20) * scale     (sum in order of selection)
//
// The bias steers the selection only. A table may name an expert twice: it then counts twice.

#pragma once

#include <cstdint>
#include <span>

namespace mk::dsv4 {

// logits [E] are replaced by s. Writes k ids and weights; k = experts.size() <= E. Returns false
// when a logit is not finite; the outputs are then undefined.
bool RouteByScore(std::span<float> logits, std::span<const float> bias, float scale,
                  std::span<int32_t> experts, std::span<float> weights);

// As above, for the experts of a table's row, each in [0, E).
bool RouteByTable(std::span<float> logits, std::span<const int32_t> row, float scale,
                  std::span<int32_t> experts, std::span<float> weights);

}  // namespace mk::dsv4
