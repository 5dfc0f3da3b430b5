#include "daemon/lens_row.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/sampling/log_probs.h"

namespace mk::daemon {
protocol::LensLayer ReduceLensRow(std::span<const float> logits, size_t top,
                                  std::optional<int32_t> next) {
  protocol::LensLayer row;
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  double weighted = 0;
  for (const float logit : logits) {
    const double below = static_cast<double>(logit) - largest;
    const double share = std::exp(below);
    sum += share;
    if (share > 0) weighted += below * share;
  }
  const auto probability = [&](int32_t id) {
    return std::exp(static_cast<double>(logits[static_cast<size_t>(id)]) - largest) / sum;
  };
  row.entropy = std::max(0.0, std::log(sum) - weighted / sum);
  for (const TokenLogProb& one : LikeliestTokens(logits, largest + std::log(sum), top)) {
    row.ids.push_back(one.id);
    row.probabilities.push_back(probability(one.id));
  }
  if (next && *next >= 0 && static_cast<size_t>(*next) < logits.size()) {
    row.rank = RankOf(logits, *next) - 1;
    row.probability = probability(*next);
  }
  return row;
}

std::pair<double, double> MeanAndDeviation(std::span<const float> values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const float value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / count)};
}

double RootMeanSquare(std::span<const float> values) {
  double squares = 0;
  for (const float value : values) squares += static_cast<double>(value) * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

}  // namespace mk::daemon
