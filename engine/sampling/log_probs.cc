#include "engine/sampling/log_probs.h"

#include <algorithm>
#include <cmath>

#include "engine/sampling/sampler.h"

namespace mk {

Result<double> LogSumExp(std::span<const float> logits) {
  const Result<int32_t> best = Argmax(logits);
  if (!best) return Fail(best.error());
  const double maximum = logits[static_cast<size_t>(*best)];
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - maximum);
  return maximum + std::log(sum);
}

std::vector<TokenLogProb> LikeliestTokens(std::span<const float> logits, double log_sum,
                                          size_t count) {
  count = std::min(count, logits.size());
  std::vector<TokenLogProb> best;
  if (count == 0) return best;
  best.reserve(count + 1);
  // In order; `best` is short, and most tokens are less likely than its last.
  for (size_t i = 0; i < logits.size(); ++i) {
    const double logit = logits[i];
    if (best.size() == count && logit <= best.back().logprob) continue;
    const auto place = std::upper_bound(
        best.begin(), best.end(), logit,
        [](double value, const TokenLogProb& entry) { return value > entry.logprob; });
    best.insert(place, {static_cast<int32_t>(i), logit});
    if (best.size() > count) best.pop_back();
  }
  for (TokenLogProb& entry : best) entry.logprob -= log_sum;
  return best;
}

size_t RankOf(std::span<const float> logits, int32_t id) {
  const auto at = static_cast<size_t>(id);
  size_t before = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > logits[at] || (logits[i] == logits[at] && i < at)) ++before;
  }
  return before + 1;
}

}  // namespace mk
