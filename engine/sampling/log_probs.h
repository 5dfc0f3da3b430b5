// Log-probabilities of tokens, as the model itself gives them: the log-softmax of a whole row of
// logits, in f64, before any bias, penalty, temperature or cut.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/result.h"

namespace mk {

// log sum_i exp(l_i), with m = max l taken out first: m + log sum_i exp(l_i - m), summed in the
// order of ids. Logits may be -inf, but not all. Errors: kNumeric as Argmax.
Result<double> LogSumExp(std::span<const float> logits);

struct TokenLogProb {
  int32_t id = 0;
  double logprob = 0.0;  // nats, at most 0; -inf for a logit of -inf
};

// The `count` likeliest tokens, those of equal logits by their ids. All of them when there are no
// more. `log_sum`: LogSumExp of the row.
std::vector<TokenLogProb> LikeliestTokens(std::span<const float> logits, double log_sum,
                                          size_t count);

// The place of a token in the order of LikeliestTokens; 1 for the likeliest.
size_t RankOf(std::span<const float> logits, int32_t id);

}  // namespace mk
