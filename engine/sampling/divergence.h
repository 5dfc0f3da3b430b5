// How far two rows of logits over one vocabulary are apart, as distributions of the next token.

#pragma once

#include <cstddef>
#include <span>

#include "engine/base/result.h"

namespace mk {

// Tokens that Divergence::shared_top counts among.
inline constexpr size_t kTopTokens = 5;

struct Divergence {
  double kl = 0;  // sum_i P_i (log P_i - log Q_i), nats; infinite where Q has none of P's mass
  bool same_top = false;  // the likeliest token is the same; of equal logits the lowest id counts
  size_t shared_top = 0;  // of the kTopTokens likeliest tokens of P so many are among those of Q
};

// P = softmax(p), Q = softmax(q), in f64, summed in the order of ids. `p` and `q` are of one
// length. Errors: those of LogSumExp.
Result<Divergence> DivergenceOf(std::span<const float> p, std::span<const float> q);

}  // namespace mk
