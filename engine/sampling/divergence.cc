#include "engine/sampling/divergence.h"

#include <algorithm>
#include <cmath>

#include "engine/sampling/log_probs.h"

namespace mk {

Result<Divergence> DivergenceOf(std::span<const float> p, std::span<const float> q) {
  const Result<double> sum_p = LogSumExp(p);
  if (!sum_p) return Fail(sum_p.error());
  const Result<double> sum_q = LogSumExp(q);
  if (!sum_q) return Fail(sum_q.error());
  Divergence divergence;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = static_cast<double>(p[i]) - *sum_p;
    const double mass = std::exp(log_p);
    if (mass > 0) divergence.kl += mass * (log_p - (static_cast<double>(q[i]) - *sum_q));
  }
  // Rounding may leave a trace below nothing.
  divergence.kl = std::max(divergence.kl, 0.0);
  const auto top_p = LikeliestTokens(p, *sum_p, kTopTokens);
  const auto top_q = LikeliestTokens(q, *sum_q, kTopTokens);
  divergence.same_top = top_p.front().id == top_q.front().id;
  for (const TokenLogProb& one : top_p) {
    divergence.shared_top += static_cast<size_t>(std::count_if(
        top_q.begin(), top_q.end(), [&](const TokenLogProb& other) { return other.id == one.id; }));
  }
  return divergence;
}

}  // namespace mk
