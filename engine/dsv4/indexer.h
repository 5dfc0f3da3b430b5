// The indexer: which compressed rows a token attends to, in layers of ratio 4.
//
//   iq_h = fp4(hadamard(rope(Wiq zn)_h))      per head, see attention_layer.h for zn
//   w    = Ww a (Di Hi)^-1/2
//   score_t = sum_h max(0, iq_h . key_t) w_h  for every row that exists, that of a group closed by
//                                             this very token included
//   picked  = the Ki rows of the highest scores; of equal scores the lower row first
//
// With at most Ki rows there is nothing to choose and nothing is scored.

#pragma once

#include "engine/base/result.h"
#include "engine/dsv4/attention_layer.h"

namespace mk::dsv4 {

// Writes the picks of every row of the batch to its scratch, ascending. kNumeric.
Status PickRows(const AttentionPass& pass);

// The `count` highest of `scores`, ascending by index, to `picks` [count]; count <= scores.size().
// `order` is scratch of as many entries as there are scores. For PickRows and its tests.
void HighestScores(std::span<const float> scores, std::span<int32_t> order,
                   std::span<int32_t> picks);

}  // namespace mk::dsv4
